"""A registry that misbehaves as a test says."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Behaviour = Callable[[BaseHTTPRequestHandler], None]
"""Answers one request, or does not."""


class FakeRegistry:
    """Answers every request as the test says and remembers what it was asked.

    With a ``context`` it speaks TLS.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.behaviour: Behaviour = lambda request: request.send_error(500)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

            def handle_any(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append((self.command, self.path, headers))
                self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.behaviour(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        scheme = "https" if context else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop listening; a request that hangs is not waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def answer(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    """Answer always the same; names of headers with ``_`` for ``-``."""

    def behave(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return behave


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """Answer each request as the next of these, and the last one for good."""
    left = list(behaviours)

    def behave(request: BaseHTTPRequestHandler) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(request)

    return behave


def endless(status: int, **headers: str) -> Behaviour:
    """Answer with a body that has no end, until the client has gone."""

    def behave(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        try:
            while True:
                request.wfile.write(b"x" * 65536)
        except OSError:
            request.close_connection = True

    return behave


def trickle(content: bytes, *, pause: float = 0.1) -> Behaviour:
    """Answer these bytes, status line and all, one by one, until the client has gone."""

    def behave(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        try:
            for byte in content:
                request.wfile.write(bytes([byte]))
                time.sleep(pause)
        except OSError:
            pass

    return behave
