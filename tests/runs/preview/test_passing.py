"""One request on its way to a server and back, between two ends in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from runs.preview.admission import Admission
from runs.preview.client_connection import ClientConnection
from runs.preview.http_messages import end_of_head, parse_request, request_body
from runs.preview.passing import Passing, RequestBody
from tests.runs.preview.test_preview_heads import SETTINGS

EARLY = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"


class End:
    """One end of a connection: what it says is read, what it is told is kept."""

    is_idle = True
    is_over = is_cut_off = is_tunnel = False
    peer = "127.0.0.1"
    on_end: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        self.told = b""
        self.takes = asyncio.Event()
        self.takes.set()

    async def read(self, _: float) -> bytes:
        return await self.said.get()

    async def write(self, data: bytes, _: float) -> None:
        await self.takes.wait()
        self.told += data

    def close(self) -> None:
        """Be closed."""

    reset = report = write_eof = close


async def done_what_can_be() -> None:
    """Wait until whoever has something to do waits for something else: nobody here takes time."""
    for _ in range(100):
        await asyncio.sleep(0)


async def passed(request: bytes, *, later: bytes) -> tuple[bool, bytes]:
    """Pass a request on to a server that answers early, while the client takes nothing.

    ``later`` is what comes of the body then. Returns whether the server's connection may be used
    again, and what the server was sent.
    """
    client, server = End(), End()
    end = end_of_head(request, 0)
    head = parse_request(request[:end])
    browser = cast("ClientConnection", client)
    body = RequestBody(browser, request_body(head), request[end:], 60.0)
    passing = Passing(SETTINGS, Admission(SETTINGS), browser, head, body)
    running = asyncio.ensure_future(passing.run(b"HEAD", server, b""))
    client.takes.clear()
    await server.said.put(EARLY + b"ab")
    await done_what_can_be()
    await client.said.put(later)
    await done_what_can_be()
    client.takes.set()
    await server.said.put(b"cd")
    return await running, server.told


@pytest.mark.parametrize(
    ("begun", "later", "reusable"),
    [
        (b"5\r\nhello\r\n", b"0\r\n\r\n", True),
        (b"5\r\nhello\r\n", b"not-a-size\r\n", False),
        (b"5\r\nhello\r\n", b"", False),
    ],
    ids=["complete", "broken", "given up"],
)
def test_a_connection_whose_server_still_waits_for_a_body_is_never_used_again(
    begun: bytes, later: bytes, *, reusable: bool
) -> None:
    request = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + begun
    again, told = asyncio.run(passed(request, later=later))
    assert again is reusable
    assert told.startswith(b"HEAD5\r\nhello\r\n")
    assert told.endswith(b"0\r\n\r\n") is reusable
