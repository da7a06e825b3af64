"""Calls of the agent over its own socket, for asyncio."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import sys
import termios
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.open_files import opened_since
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import DOCKER_HOST
from tests.workspaces.runtimes.test_docker_channel import (  # noqa: F401 - fixtures
    Place,
    place,
    serving_image,
    shell_image,
)
from tests.workspaces.runtimes.test_docker_streams import Told
from workspaces.runtimes import boot
from workspaces.runtimes.agent_streams import AgentStream
from workspaces.runtimes.docker import agent_socket, endpoints
from workspaces.runtimes.docker.endpoints import (
    SocketStream,
    first_process,
    open_endpoint,
)
from workspaces.runtimes.docker.streams import ExecStream

pytestmark = [pytest.mark.docker, pytest.mark.parametrize("place", ["socket"], indirect=True)]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that a busy machine keeps from answering is waited for."""
    monkeypatch.setattr(agent_socket, "ANSWER_SECONDS", LONG_WAIT)


async def opened(place: Place, told: Told, *arguments: str) -> AgentStream:  # noqa: F811
    """Call the agent of the container, which here runs what it is given."""
    endpoint = f"docker-exec://{place.container.id}"
    argv = [boot.AGENT, *arguments]
    return await open_endpoint(endpoint, DOCKER_HOST, argv, told, timeout=LONG_WAIT)


def test_bytes_go_both_ways_unchanged_without_the_engine(place: Place) -> None:  # noqa: F811
    content = os.urandom(16_000_000)

    async def echo() -> tuple[bytes, int]:
        told = Told()
        until_go = "until [ -e /tmp/go ]; do sleep 0.1; done"
        script = f"{until_go}; head -c {len(content)}; echo done >&2; exit 7"
        stream = await opened(place, told, "sh", "-c", script)
        assert isinstance(stream, SocketStream)
        for start in range(0, len(content), 65536):
            if told.pauses == 1 and not told.writable.is_set():  # only now it begins to read
                await asyncio.to_thread(place.container.exec_run, ["touch", "/tmp/go"])
            await told.writable.wait()
            stream.write(content[start : start + 65536])
        async with asyncio.timeout(LONG_WAIT):
            await told.ended.wait()
        assert await stream.exit_code(LONG_WAIT) == 7
        assert stream.errors() == "done\n"
        stream.close()
        return hashlib.sha256(told.output).digest(), told.pauses

    digest, pauses = asyncio.run(echo())
    assert digest == hashlib.sha256(content).digest()
    assert pauses > 0


def waiting_in(descriptor: int) -> int:
    """Return how many bytes have come over a socket that nobody has read."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_output_waits_while_nobody_takes_it(place: Place) -> None:  # noqa: F811
    async def wait() -> None:
        told = Told()
        stream = await opened(place, told, "sh", "-c", "read go; seq 1 2000000")
        stream.pause_output()
        stream.write(b"go\n")
        assert isinstance(stream, SocketStream)
        assert stream._transport is not None
        descriptor = stream._transport.get_extra_info("socket").fileno()
        async with asyncio.timeout(LONG_WAIT):
            while not waiting_in(descriptor):
                await asyncio.sleep(0.01)
        assert told.output == b""
        stream.resume_output()
        async with asyncio.timeout(LONG_WAIT):
            await told.ended.wait()
        assert told.output.endswith(b"\n2000000\n")

    asyncio.run(wait())


def test_closing_ends_the_input_after_what_was_written(
    place: Place,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "CLOSE_SECONDS", LONG_WAIT)  # for who reads what was written

    async def close() -> None:
        stream = await opened(place, Told(), "sh", "-c", "cat >/tmp/part; mv /tmp/part /tmp/over")
        stream.write(b"x" * 3_000_000)
        stream.close()
        async with asyncio.timeout(LONG_WAIT):
            while place.container.exec_run(["wc", "-c", "/tmp/over"]).exit_code:
                await asyncio.sleep(0.1)

    asyncio.run(close())
    assert place.container.exec_run(["wc", "-c", "/tmp/over"]).output == b"3000000 /tmp/over\n"


def test_a_container_that_ends_ends_its_calls(place: Place) -> None:  # noqa: F811
    async def end() -> None:
        told = Told()
        stream = await opened(place, told, "sleep", "600")
        assert await stream.container_runs(LONG_WAIT) is True
        place.container.kill()
        async with asyncio.timeout(LONG_WAIT):
            await told.ended.wait()
        assert await stream.container_runs(LONG_WAIT) is False
        assert await stream.exit_code(0.1) is None

    asyncio.run(end())


def test_the_engine_does_it_where_the_agent_serves_no_calls(place: Place) -> None:  # noqa: F811
    place.container.exec_run(["rm", "/var/lib/svc/agent.sock"])

    async def call() -> bytes:
        told = Told()
        stream = await opened(place, told, "echo", "here")
        assert isinstance(stream, ExecStream)
        async with asyncio.timeout(LONG_WAIT):
            await told.ended.wait()
        return told.output

    assert asyncio.run(call()) == b"here\n"


def test_a_process_that_is_not_the_containers_is_not_taken_for_it(place: Place) -> None:  # noqa: F811
    place.container.reload()
    container_id = str(place.container.id)
    pid = place.container.attrs["State"]["Pid"]
    assert agent_socket.is_first_process(pid, container_id)
    for other in (os.getpid(), 1, 0, 2**30):
        assert not agent_socket.is_first_process(other, container_id)
    assert not agent_socket.is_first_process(pid, "0" * 64)
    assert asyncio.run(first_process("0" * 64, DOCKER_HOST, LONG_WAIT)) is None
    assert asyncio.run(first_process(container_id, "unix:///nowhere", LONG_WAIT)) is None
    place.container.pause()
    try:
        assert asyncio.run(first_process(container_id, DOCKER_HOST, LONG_WAIT)) is None
    finally:
        place.container.unpause()


def test_calls_leave_no_descriptor_behind(place: Place) -> None:  # noqa: F811
    async def call(close: Callable[[AgentStream], None]) -> None:
        told = Told()
        stream = await opened(place, told, "cat")
        close(stream)
        async with asyncio.timeout(LONG_WAIT):
            await told.ended.wait()

    async def calls() -> None:
        await call(lambda stream: stream.abort())
        before = opened_since(Counter())
        for _ in range(5):
            await call(lambda stream: stream.abort())
            await call(lambda stream: stream.close())
        async with asyncio.timeout(LONG_WAIT):
            while opened_since(before):
                await asyncio.sleep(0.1)

    asyncio.run(calls())
