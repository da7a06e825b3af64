"""One HTTP request of a connection: read strictly, written anew, and nothing behind it.

A second request on the same connection could ask for another host, so each connection carries one:
the server is told to close, and so is the client.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

from workspaces.egress.bound.placeholders import Watch
from workspaces.egress.tls_ending import Input

MAY_BE_A_REQUEST = re.compile(rb"[A-Z]{3,16} ")
MAY_BECOME_A_REQUEST = re.compile(rb"[A-Z]{1,16}")
MAX_HEAD_BYTES = 64 * 1024
CHUNK = 64 * 1024
_OF_THIS_HOP = {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"http2-settings"}


class BadRequest(ValueError):
    """It is no HTTP request that we would pass on; the text says why."""


@dataclass(slots=True)
class Request:
    """A request whose body is still to be read."""

    method: str
    target: bytes
    host: str
    port: int | None
    headers: list[tuple[bytes, bytes]]
    _client: h11.Connection = field(repr=False)

    @property
    def path(self) -> str:
        """What is asked for, without the query."""
        return self.target.partition(b"?")[0].decode("latin-1")

    async def passed_on(self, reader: Input, watch: Watch) -> AsyncIterator[bytes]:
        """Yield the request as it is to be sent, with its body as that arrives.

        ``watch`` looks at the body, in whatever pieces that is sent. Raises ``BadRequest``.
        """
        server = h11.Connection(h11.CLIENT)
        try:
            head = h11.Request(method=self.method, target=self.target, headers=self._sent_headers())
            yield server.send(head) or b""
            while not isinstance(
                event := await _next_event(self._client, reader), h11.EndOfMessage
            ):
                if isinstance(event, h11.Data):
                    watch.look_at(bytes(event.data))
                    yield server.send(h11.Data(data=bytes(event.data))) or b""
                else:
                    raise BadRequest("The request's body was cut short.")
            if end := server.send(h11.EndOfMessage()):
                yield end
        except (h11.RemoteProtocolError, h11.LocalProtocolError) as error:
            raise BadRequest(str(error)) from error

    def _sent_headers(self) -> list[tuple[bytes, bytes]]:
        named = {
            word.strip().lower()
            for name, value in self.headers
            if name == b"connection"
            for word in value.split(b",")
        }
        # What says how long the body is stays, whatever the client calls it.
        dropped = (_OF_THIS_HOP | named) - {b"content-length", b"transfer-encoding", b"host"}
        kept = [
            (name, value)
            for name, value in self.headers
            if name not in dropped and not name.startswith(b"proxy-")
        ]
        return [*kept, (b"connection", b"close")]


async def read_request(begun: bytes, reader: Input) -> Request:
    """Read a request's head, of which ``begun`` was read already.

    Raises ``BadRequest``, ``EOFError``.
    """
    client = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    if begun:  # nothing would mean the end
        client.receive_data(begun)
    try:
        event = await _next_event(client, reader)
    except h11.RemoteProtocolError as error:
        # What stands behind the colon is what the client has said, perhaps with a secret.
        what = str(error).partition(":")[0]
        raise BadRequest(f"This is not an HTTP request: {what}.") from error
    if not isinstance(event, h11.Request):
        raise EOFError
    headers = [(bytes(name), bytes(value)) for name, value in event.headers]
    names = [name for name, _ in headers]
    hosts = [value for name, value in headers if name == b"host"]
    target = bytes(event.target)
    method = event.method.decode("ascii")
    if method == "CONNECT" or not (target.startswith(b"/") or target == b"*"):
        raise BadRequest("Requests to a proxy are not passed on: connect to the host itself.")
    if b"content-length" in names and b"transfer-encoding" in names:
        raise BadRequest("The request gives the length of its body in two ways.")
    if len(hosts) != 1:
        raise BadRequest("The request has no Host.")
    if any(byte <= 0x20 for byte in hosts[0]):
        # Some readers of URLs leave out tabs.
        raise BadRequest("The request's Host cannot be read.")
    try:
        parts = urlsplit(f"//{hosts[0].decode('ascii')}")
        host, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError as error:
        raise BadRequest("The request's Host cannot be read.") from error
    if parts.path or parts.query or parts.fragment or "@" in parts.netloc or not host:
        raise BadRequest("The request's Host cannot be read.")
    return Request(method, target, host, port, headers, client)


async def _next_event(connection: h11.Connection, reader: Input) -> h11.Event | type[h11.PAUSED]:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(CHUNK))
    return event  # type: ignore[return-value]  # NEED_DATA is no more possible


def refusal(*, host: str, port: int, rule: str, reason: str, not_reached: bool = False) -> bytes:
    """Return the answer to a request that is not passed on, or whose host is ``not_reached``."""
    if not_reached:
        problem = {
            "type": "about:blank",
            "title": "Bad Gateway",
            "status": 502,
            "code": "egress-not-reached",
            "detail": f"{reason} The workspace's policy allows the request.",
            "host": host[:253],
            "port": port,
            "rule": rule,
        }
        return _answer("502 Bad Gateway", problem)
    problem = {
        "type": "about:blank",
        "title": "Forbidden",
        "status": 403,
        "code": "egress-refused",
        "detail": f"{reason} The workspace's policy (runtime.network.egress) decides what it "
        "reaches.",
        "host": host[:253],
        "port": port,
        "rule": rule,
        "allowedBy": {"runtime": {"network": {"egress": {"rules": [_rule(host[:253], port)]}}}},
    }
    return _answer("403 Forbidden", problem)


def _answer(status: str, problem: Mapping[str, object]) -> bytes:
    body = json.dumps(problem).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status}\r\n"
        "Content-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _rule(host: str, port: int) -> dict[str, object]:
    return {"hosts": [host], "ports": [port]}
