"""Real git repositories and real git servers on the loopback interface."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from pytest_django.fixtures import Settings

from scm import app_connection as connection
from scm.git import ResolvedSource, SourceError, SourcePolicy, checkout, resolve
from tests.scm.fake_provider import FakeProvider, configure, running_provider
from tests.stack.free_ports import free_port
from tests.support.waiting import LONG_WAIT

GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "C",
    "GIT_COMMITTER_EMAIL": "c@example.org",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
}
COMMITTED_AT = 1767323045
NEVER = threading.Event()
"""Nobody cancels."""


def git(where: Path, *arguments: str) -> str:
    """Run git in a repository of the test and return what it printed."""
    done = subprocess.run(
        ["git", "-C", str(where), *arguments], env=GIT_ENV, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


@dataclass(frozen=True)
class Origin:
    """A bare repository with some history; names map to the commits they stand for."""

    path: Path
    first: str
    trunk: str
    topic: str

    @property
    def url(self) -> str:
        return f"file://{self.path}"


ODD_BRANCH = "topic/ü-it's;$(touch)`&=%41"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody refused because this machine is slow."""
    monkeypatch.setattr(connection, "PLACE_SECONDS", 60.0)


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    """A repository whose default branch is ``trunk``, with tags, odd names and a symbolic link."""
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "-q", "-b", "trunk")
    (work / "README").write_text("one\n")
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "link").symlink_to("README")
    (work / "with space and ü").write_text("x\n")
    git(work, "add", ".")
    git(work, "commit", "-q", "-m", "first")
    first = git(work, "rev-parse", "HEAD")
    git(work, "tag", "-a", "-m", "annotated", "v1")
    git(work, "tag", "both")
    (work / "README").write_text("two\n")
    git(work, "commit", "-q", "-am", "second")
    trunk = git(work, "rev-parse", "HEAD")
    git(work, "tag", "light")
    git(work, "checkout", "-q", "-b", ODD_BRANCH)
    (work / "README").write_text("three\n")
    git(work, "commit", "-q", "-am", "third")
    topic = git(work, "rev-parse", "HEAD")
    git(work, "branch", "both", trunk)
    git(work, "branch", "feature/trunk", topic)
    git(work, "update-ref", "refs/pull/7/head", topic)
    git(work, "checkout", "-q", "trunk")
    bare = tmp_path / "served" / "odd name.git"
    git(work, "clone", "-q", "--mirror", str(work), str(bare))
    return Origin(bare.parent / "odd%20name.git", first, trunk, topic)


@pytest.fixture
def served(origin: Origin) -> Path:
    """The folder that holds the bare repository ``odd name.git``."""
    return origin.path.parent


@pytest.fixture
def policy() -> SourcePolicy:
    """Everything allowed, and time for it on a slow machine."""
    return SourcePolicy(
        allow_file=True,
        allow_private=True,
        resolve_timeout=LONG_WAIT,
        fetch_timeout=LONG_WAIT,
        max_bytes=50 * 1024 * 1024,
    )


class GitHttpHandler(BaseHTTPRequestHandler):
    """``git http-backend`` behind HTTP, and some badly behaved neighbours."""

    root: Path
    requests: list[str]
    protocol_version = "HTTP/1.0"

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        self.requests.append(self.path)
        kind, _, rest = self.path.lstrip("/").partition("/")
        if kind in ("git", "old"):
            self._backend("/" + rest, modern=kind == "git")
        elif kind == "moved":
            self._answer(301, Location=f"/git/{rest}")
        elif kind == "login":
            self._answer(302, Location="/sign-in?next=" + rest)
        elif kind == "loop":
            self._answer(302, Location=self.path)
        elif kind == "inside":
            self._answer(302, Location=f"http://169.254.169.254/{rest}")
        elif kind == "private":
            self._answer(401, WWW_Authenticate='Basic realm="x"')
        elif kind == "broken":
            self._answer(503)
        elif kind == "page":
            self._answer(200, b"<html>\n<body>\nHi\n</body>\n", Content_Type="text/html")
        elif kind == "hang":
            time.sleep(2 * LONG_WAIT)
        else:
            self._answer(404)

    do_POST = do_GET  # noqa: N815

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _backend(self, path: str, *, modern: bool) -> None:
        path, _, query = path.partition("?")
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else b""
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
        env = GIT_ENV | {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path.replace("%20", " "),
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        if modern:
            env["GIT_PROTOCOL"] = self.headers.get("git-protocol", "")
        done = subprocess.run(
            ["git", "http-backend"], env=env, input=body, capture_output=True, check=False
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@dataclass(frozen=True)
class HttpServer:
    url: str
    requests: list[str]


@contextmanager
def serving(root: Path, certificate: Path | None = None) -> Iterator[HttpServer]:
    """Serve a folder over smart HTTP, or HTTPS with a file that holds a certificate and its key."""
    requests: list[str] = []
    handler = type("Handler", (GitHttpHandler,), {"root": root, "requests": requests})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield HttpServer(f"{scheme}://127.0.0.1:{server.server_address[1]}", requests)
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def http_server(served: Path) -> Iterator[HttpServer]:
    """A smart-HTTP git server; its first path segment chooses how it behaves."""
    with serving(served) as server:
        yield server


@dataclass(frozen=True)
class HttpsServer:
    url: str
    certificate: Path
    """What a client has to trust."""


@pytest.fixture
def https_server(served: Path, tmp_path: Path) -> Iterator[HttpsServer]:
    """The same over HTTPS, as ``localhost``, with a certificate nobody else knows."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "server.pem").write_bytes(certificate + secret)
    trusted = tmp_path / 'extra "quoted" ca.crt'
    trusted.write_bytes(certificate)
    with serving(served, tmp_path / "server.pem") as server:
        yield HttpsServer(server.url.replace("127.0.0.1", "localhost"), trusted)


@pytest.fixture
def git_daemon(served: Path) -> Iterator[str]:
    """The URL of a ``git daemon`` that serves the folder."""
    port = free_port()
    daemon = subprocess.Popen(
        [
            *("git", "daemon", "--export-all", "--listen=127.0.0.1", f"--port={port}"),
            *(f"--base-path={served}", "--reuseaddr", str(served)),
        ],
        env=GIT_ENV,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + LONG_WAIT
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    yield f"git://127.0.0.1:{port}"
    os.killpg(daemon.pid, 9)
    daemon.wait()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield listener.getsockname()[1]


@pytest.fixture
def grow(origin: Origin, tmp_path: Path) -> Callable[[dict[str, bytes]], str]:
    """Return a function that adds a commit with these files to ``trunk`` of the origin."""
    bare = origin.path.parent / "odd name.git"

    def add(files: dict[str, bytes]) -> str:
        work = tmp_path / "grow"
        git(tmp_path, "clone", "-q", str(bare), str(work))
        for name, content in files.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(content)
        git(work, "add", "-f", ".")
        git(work, "commit", "-q", "-m", "grown")
        git(work, "push", "-q", "origin", "HEAD:trunk")
        commit = git(work, "rev-parse", "HEAD")
        shutil.rmtree(work)
        return commit

    return add


def failure(url: str, ref: str | None, policy: SourcePolicy) -> SourceError:
    """Return why a ref cannot be resolved."""
    with pytest.raises(SourceError) as caught:
        resolve(url, ref, policy)
    return caught.value


def fetch_failure(source: ResolvedSource, into: Path, policy: SourcePolicy) -> SourceError:
    """Return why a source cannot be checked out, of which nothing is left."""
    with pytest.raises(SourceError) as caught:
        checkout(source, into, policy, NEVER)
    assert not into.exists()
    return caught.value


@pytest.fixture
def provider(settings: Settings) -> Iterator[FakeProvider]:
    """A provider that runs, and is the one that the settings name."""
    with running_provider() as provider:
        configure(settings, provider)
        yield provider
