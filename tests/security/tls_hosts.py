"""Hosts beyond this machine that prove their names, ask for secrets, and note what they are sent.

They serve what clients of git, pip and npm want to see, to whoever shows the secret.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PORT = 4443
_SERVE = """
import base64, http.server, io, json, ssl, sys, threading, zipfile
port, certificate, key, notes, secrets = json.loads(sys.argv[1])
lock = threading.Lock()
def wheel():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = "canarypkg-1.0.dist-info"
        metadata = ["Metadata-Version: 2.1", "Name: canarypkg", "Version: 1.0", ""]
        built = ["Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any", ""]
        archive.writestr(f"{info}/METADATA", "\\n".join(metadata))
        archive.writestr(f"{info}/WHEEL", "\\n".join(built))
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()
NAME = "canarypkg-1.0-py3-none-any.whl"
PAGES = {
    "/repo.git/info/refs": ("0" * 39 + "1\\trefs/heads/main\\n").encode(),
    "/repo.git/HEAD": b"ref: refs/heads/main\\n",
    "/simple/canarypkg/": f'<a href="/files/{NAME}">{NAME}</a>'.encode(),
    f"/files/{NAME}": wheel(),
    "/npm/canarypkg": json.dumps({
        "name": "canarypkg", "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {"name": "canarypkg", "version": "1.0.0", "dist": {
            "tarball": "https://allowed.test/none.tgz", "shasum": "0" * 40}}},
    }).encode(),
}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *words):
        pass
    def serve(self):
        size = int(self.headers.get("content-length", 0))
        body = self.rfile.read(size)
        with lock, open(notes, "a") as file:
            told = {"path": self.path, "headers": dict(self.headers.items()), "body": len(body)}
            file.write(json.dumps(told) + "\\n")
        login = self.headers.get("authorization", "")
        kind, _, word = login.partition(" ")
        if kind == "Basic":
            word = base64.b64decode(word).decode().partition(":")[2]
        given = {name.lower(): value for name, value in self.headers.items()}
        right = word == secrets["authorization"] and all(
            given.get(name, value) == value
            for name, value in secrets.items()
            if name != "authorization"
        )
        page = PAGES.get(self.path.partition("?")[0], b"welcome")
        if self.path.startswith("/bulk"):
            page = bytes(int(self.path.partition("=")[2]))
        if not right and not self.path.startswith("/open"):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="it"')
            page = b"wrong"
        else:
            self.send_response(200)
            types = {"/npm": "application/json", "/simple": "text/html"}
            kinds = [t for start, t in types.items() if self.path.startswith(start)]
            self.send_header("Content-Type", kinds[0] if kinds else "text/plain")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)
    do_GET = do_POST = do_PUT = serve
class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    def handle_error(self, *words):
        pass
    def get_request(self):
        client, address = self.socket.accept()
        # The handshake belongs to the thread of the client.
        return context.wrap_socket(client, server_side=True, do_handshake_on_connect=False), address
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server = Server(("0.0.0.0", port), Handler)
print("ready", flush=True)
server.serve_forever()
"""


@dataclass
class TlsHosts:
    """What they were sent, and the authority that has certified them."""

    notes: Path
    authority: Path

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Return path, headers and size of the body of each request so far."""
        if not self.notes.exists():
            return []
        return [json.loads(line) for line in self.notes.read_text().splitlines()]


def certified(folder: Path, *names: str) -> tuple[Path, Path, Path]:
    """Make an authority, and a certificate and key for hosts; return where they are."""
    ca, ca_key = folder / "authority.pem", folder / "authority.key"
    certificate, key = folder / "host.pem", folder / "host.key"
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    of_ca = ("-subj", "/CN=the world", "-keyout", str(ca_key), "-out", str(ca))
    subprocess.run([*made, *of_ca], check=True, capture_output=True)
    alternative = ",".join(f"DNS:{name}" for name in names)
    of_host = ("-subj", f"/CN={names[0]}", "-addext", f"subjectAltName={alternative}")
    places = ("-keyout", str(key), "-out", str(certificate))
    signed = ("-CA", str(ca), "-CAkey", str(ca_key), "-addext", "basicConstraints=CA:FALSE")
    subprocess.run([*made, *of_host, *signed, *places], check=True, capture_output=True)
    return ca, certificate, key


@contextmanager
def tls_hosts(folder: Path, secrets: dict[str, str]) -> Iterator[TlsHosts]:
    """Have some in the world outside; ``secrets`` are what they ask for, by the header."""
    ca, certificate, key = certified(folder, "allowed.test", "*.wild.test")
    notes = folder / "requests"
    given = json.dumps([PORT, str(certificate), str(key), str(notes), secrets])
    namespace = f"svc{os.getpid()}"
    with subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", _SERVE, given],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield TlsHosts(notes, ca)
        finally:
            process.kill()
