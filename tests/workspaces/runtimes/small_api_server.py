"""As much of a cluster's API server as tests of single calls need: objects, and what goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from wsproto.utilities import generate_accept_token

Document = dict[str, Any]
Fault = Callable[["Request"], bool]


class Request(BaseHTTPRequestHandler):
    """One call; what it stores has preconditions as in a cluster."""

    protocol_version = "HTTP/1.1"
    server: SmallApiServer

    def log_message(self, *args: object) -> None:
        """Write nothing."""

    def answer(self, status: int, document: Document, **headers: str) -> None:
        """Send JSON."""
        content = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def refuse(self, status: int, message: str) -> None:
        """Send an error."""
        self.answer(status, {"kind": "Status", "message": message})

    def accept_exec(self) -> None:
        """Begin an exec, as far as its client can tell."""
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        token = generate_accept_token(self.headers["Sec-WebSocket-Key"].encode())
        self.send_header("Sec-WebSocket-Accept", token.decode())
        self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
        self.end_headers()

    def hang_up(self) -> None:
        """End the connection without an answer."""
        self.close_connection = True

    def _handle(self) -> None:
        place = urlsplit(self.path).path
        size = int(self.headers.get("Content-Length") or 0)
        self.body: Document = json.loads(self.rfile.read(size)) if size else {}
        with self.server.lock:
            self.server.calls.append((self.command, place))
            if any(fault(self) for fault in self.server.faults):
                return
            self._done(place)

    do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815

    def _done(self, place: str) -> None:
        objects = self.server.objects
        if self.command == "POST":
            place = f"{place}/{self.body['metadata']['name']}"
            if place in objects:
                self.refuse(409, "already exists")
            else:
                self.answer(201, self.server.store(place, self.body))
            return
        found = objects.get(place)
        if found is None:
            below = [each for name, each in objects.items() if name.startswith(f"{place}/")]
            if self.command == "GET" and place.rpartition("/")[2] in self.server.KINDS:
                self.answer(200, {"items": below, "metadata": {}})
            else:
                self.refuse(404, "not found")
            return
        wanted = self.body.get("preconditions") or self.body.get("metadata") or {}
        now = found["metadata"]
        if any(now[each] != wanted[each] for each in ("uid", "resourceVersion") if each in wanted):
            self.refuse(409, "it has changed")
        elif self.command == "GET":
            self.answer(200, found)
        elif self.command == "DELETE":
            self.answer(200, objects.pop(place))
        else:
            self.answer(200, self.server.merge(place, self.body))


class SmallApiServer(ThreadingHTTPServer):
    """Objects by their paths, the calls that were made, and faults that come before them."""

    daemon_threads = True
    KINDS = ("pods", "persistentvolumeclaims", "networkpolicies", "events")

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.lock = threading.RLock()
        self.objects: dict[str, Document] = {}
        self.calls: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self._version = 0

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that went away."""

    def store(self, place: str, document: Document) -> Document:
        """Have an object; it gets an id of its own."""
        with self.lock:
            self._version += 1
            metadata = {
                "uid": f"uid-{self._version}",
                "resourceVersion": str(self._version),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                **document["metadata"],
            }
            self.objects[place] = document | {"metadata": metadata}
            return self.objects[place]

    def merge(self, place: str, change: Document) -> Document:
        """Change an object."""
        with self.lock:
            self._version += 1
            metadata = change.get("metadata", {}) | {"resourceVersion": str(self._version)}
            found = self.objects[place]
            changed = found["metadata"] | metadata
            changed["annotations"] = {
                **found["metadata"].get("annotations", {}),
                **metadata.get("annotations", {}),
            }
            self.objects[place] = found | change | {"metadata": changed}
            return self.objects[place]

    def kubeconfig(self, folder: Path) -> str:
        """Return a kubeconfig that leads here."""
        address = f"http://127.0.0.1:{self.server_address[1]}"
        place = folder / "kubeconfig"
        place.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "c", "cluster": {"server": address}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        return str(place)


@contextmanager
def small_api_server() -> Iterator[SmallApiServer]:
    """Have one for the block."""
    with SmallApiServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
