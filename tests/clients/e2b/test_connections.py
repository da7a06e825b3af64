"""Connections to the facade end when nothing comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from e2bfacade.connections import BoundedConnection
from tests.runs.gateway.timed_gateway import Clock
from tests.support.waiting import LONG_WAIT

HEAD = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
BIG = 64 * 1024 * 1024
SECONDS = LONG_WAIT
"""How long a test waits for what has to come; it comes much earlier."""


class Hasty(BoundedConnection):
    """Waits for heads as long as nothing takes, but on a clock that is set forward."""

    head_seconds = 2 * SECONDS


class Impatient(BoundedConnection):
    """Waits shortly for clients that take nothing."""

    write_seconds = 0.3


async def time_passes() -> None:
    """Have it be later than any head may come, and what waits for that happen."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Clock)
    loop.ahead += Hasty.head_seconds
    await asyncio.sleep(0.05)


def on_the_clock(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run something while no time passes but what it lets pass."""
    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(work())


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answer ``/slow`` after a while, ``/big`` with much, and all else at once."""
    if scope["path"] == "/slow":
        await time_passes()
    content = b"x" * 65536
    count = BIG // len(content) if scope["path"] == "/big" else 1
    headers = [(b"content-length", str(count * len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(count):
        await send({"type": "http.response.body", "body": content, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def served(kind: type[BoundedConnection]) -> AsyncIterator[tuple[int, ServerState]]:
    """Give the port of a server with such connections, and what it knows of them."""
    state = ServerState()
    config = uvicorn.Config(
        application,
        http=kind,
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=int(100 * SECONDS),  # it is not what ends a connection here
    )
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: kind(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1], state
    finally:
        server.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the connection ends."""
    content = bytearray()
    try:
        while part := await asyncio.wait_for(reader.read(65536), SECONDS):
            content += part
    except ConnectionResetError:
        pass
    return bytes(content)


@pytest.mark.parametrize("begun", [b"", b"G", HEAD])
def test_a_connection_without_a_whole_head_is_closed(begun: bytes) -> None:
    async def work() -> None:
        async with served(Hasty) as (port, state):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
            writer.write(begun)
            while not state.connections:
                await asyncio.sleep(0)
            await time_passes()
            assert await ended(reader) == b""
            assert not state.connections
            writer.close()

    on_the_clock(work)


@pytest.mark.parametrize("more", [b"", b"GET"])
def test_a_connection_that_was_used_is_closed_without_another_head(more: bytes) -> None:
    async def work() -> None:
        async with served(Hasty) as (port, state):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
            writer.write(HEAD + b"\r\n")
            await reader.readuntil(b"x" * 65536)
            while state.tasks:
                await asyncio.sleep(0)
            writer.write(more)
            await time_passes()
            await ended(reader)
            assert not state.connections
            writer.close()

    on_the_clock(work)


def test_a_call_may_take_longer_than_the_next_head() -> None:
    async def work() -> None:
        async with served(Hasty) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
            slow = HEAD.replace(b"/ ", b"/slow ", 1) + b"\r\n"
            writer.write(slow + slow)
            answers = bytearray()
            while answers.count(b"x") < 2 * 65536:
                answers += await asyncio.wait_for(reader.read(65536), 100 * SECONDS)
            assert answers.count(b"HTTP/1.1 200 OK") == 2
            writer.close()

    on_the_clock(work)


def test_a_client_that_takes_nothing_of_an_answer_is_left() -> None:
    async def work() -> None:
        async with served(Impatient) as (port, state):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(HEAD.replace(b"/ ", b"/big ", 1) + b"\r\n")
            async with asyncio.timeout(SECONDS):
                while not state.total_requests and not state.tasks:
                    await asyncio.sleep(0.05)
                while state.connections:
                    await asyncio.sleep(0.05)
            writer.close()

    asyncio.run(work())
