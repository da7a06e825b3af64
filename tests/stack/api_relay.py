"""The API as a gateway meets it on a bad day: refusing, late, or noticing what is asked."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.waiting import LONG_WAIT

Hook = Callable[["Exchange"], None]


@dataclass
class Exchange:
    """One request and its answer, which a hook may change before it is sent."""

    method: str
    path: str
    status: int
    content: bytes


@dataclass
class Relay:
    """Hands requests on to the API; every answer goes through ``hook`` first.

    What is in ``refused``, by method and path, is answered by an error and not handed on.
    """

    url: str
    refused: set[tuple[str, str]] = field(default_factory=set)
    hook: Hook | None = None
    seen: list[tuple[str, str]] = field(default_factory=list)


@contextlib.contextmanager
def relay_to(port: int) -> Iterator[Relay]:
    """Serve a relay to the API at a port of the loopback interface."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def relayed(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if (self.command, self.path) in relay.refused:
                self.answer(503, b'{"code": "closed", "detail": "Not today."}')
                return
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
            with contextlib.closing(upstream):
                headers = {name: value for name, value in self.headers.items() if name != "Host"}
                upstream.request(self.command, self.path, body or None, headers)
                answer = upstream.getresponse()
                exchange = Exchange(self.command, self.path, answer.status, answer.read())
            relay.seen.append((exchange.method, exchange.path))
            if relay.hook is not None:
                relay.hook(exchange)
            self.answer(exchange.status, exchange.content)

        def answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = relayed  # noqa: N815 - the names that the server looks for

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    relay = Relay(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield relay
    finally:
        server.shutdown()
        server.block_on_close = False
        server.server_close()
        thread.join()
