"""The git side of the fake provider: smart HTTP for those whose token may read the repository."""

from __future__ import annotations

import base64
import subprocess
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote

from tests.scm.conftest import GIT_ENV, git
from tests.scm.fake_provider import ROOT, Asked, Behaviour, FakeProvider


@dataclass
class ProviderGit:
    """The provider's repositories, below one folder as ``owner/name.git``."""

    provider: FakeProvider
    folder: Path
    asked: list[Asked] = field(default_factory=list)
    """What git asked for."""
    is_down: bool = False
    """Whether the provider's API answers that it is out of order."""

    def __post_init__(self) -> None:
        """Answer instead of the API whatever is not below its root."""
        self.provider.override = self._behaviour

    def publish(self, full_name: str, files: dict[str, str]) -> str:
        """Make a repository of one commit on ``main``; return the commit."""
        work = self.folder / f"{full_name}.work"
        work.mkdir(parents=True)
        git(work, "init", "-q", "-b", "main")
        for path, content in files.items():
            (work / path).write_text(content)
        git(work, "add", "-f", ".")
        git(work, "commit", "-q", "-m", "first")
        git(work, "clone", "-q", "--mirror", str(work), str(self.folder / f"{full_name}.git"))
        return git(work, "rev-parse", "HEAD")

    def url(self, full_name: str) -> str:
        """Return where a repository is cloned from."""
        return f"http://{self.provider.host}/{full_name}.git"

    def _behaviour(self, asked: Asked) -> Behaviour | None:
        if asked.path.startswith(f"{ROOT}/"):
            return _out_of_order if self.is_down else None
        self.asked.append(asked)
        return lambda request: self._serve(request, asked)

    def _serve(self, request: BaseHTTPRequestHandler, asked: Asked) -> None:
        path, _, query = asked.path.partition("?")
        full_name = unquote(path.lstrip("/").partition(".git/")[0])
        if not self.provider.allows(_token(asked), full_name):
            # The provider does not tell a stranger whether there is such a repository.
            status = 404 if "authorization" in asked.headers else 401
            _send(request, status, {"WWW-Authenticate": 'Basic realm="GitHub"'}, b"")
            return
        env = GIT_ENV | {
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": unquote(path),
            "QUERY_STRING": query,
            "REQUEST_METHOD": asked.method,
            "CONTENT_TYPE": asked.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": asked.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": asked.headers.get("git-protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        done = subprocess.run(
            ["git", "http-backend"], env=env, input=asked.body, capture_output=True, check=False
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        _send(request, int(headers.pop("Status", "200").split()[0]), headers, content)


def _token(asked: Asked) -> str:
    """Return the token in an ``Authorization``; empty when it is not what the provider wants."""
    scheme, _, encoded = asked.headers.get("authorization", "").partition(" ")
    user, _, token = base64.b64decode(encoded).decode().partition(":")
    return token if scheme == "Basic" and user == "x-access-token" else ""


def _out_of_order(request: BaseHTTPRequestHandler) -> None:
    _send(request, 503, {}, b"")


def _send(
    request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes
) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)
