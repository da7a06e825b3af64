"""A registry that misbehaves as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Behaviour = Callable[[BaseHTTPRequestHandler], None]
"""Answers one request, or does not."""


class FakeRegistry:
    """Answers every request as the test says and remembers what it was asked."""

    def __init__(self) -> None:
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
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

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
