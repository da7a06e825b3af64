"""Execs of a real engine for asyncio."""

from __future__ import annotations

import asyncio
import hashlib
import os
import uuid
from collections.abc import Iterator

import docker
import pytest
from docker.models.containers import Container

from tests.support.removal import remove_container
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, DOCKER_HOST
from workspaces.runtimes.agent_streams import AgentStream
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.endpoints import open_endpoint

pytestmark = pytest.mark.docker


class Told:
    """Keeps what a stream tells."""

    def __init__(self) -> None:
        self.output = b""
        self.ended = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.pauses = 0

    def output_received(self, data: bytes) -> None:
        """Keep output."""
        self.output += data

    def input_paused(self) -> None:
        """Count it."""
        self.pauses += 1
        self.writable.clear()

    def input_resumed(self) -> None:
        """Let the test write on."""
        self.writable.set()

    def output_ended(self) -> None:
        """Keep the end."""
        self.ended.set()


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    """A container that does nothing."""
    client = docker.DockerClient(DOCKER_HOST, timeout=round(LONG_WAIT))
    container = client.containers.run(
        BASE_IMAGE, ["sleep", "600"], detach=True, init=True, name=f"streams-{uuid.uuid4().hex}"
    )
    yield container
    remove_container(container)
    client.close()


def opened(container: Container, told: Told, *argv: str) -> asyncio.Future[AgentStream]:
    """Start a program in the container."""
    endpoint = f"docker-exec://{container.id}"
    opening = open_endpoint(endpoint, DOCKER_HOST, list(argv), told, timeout=LONG_WAIT)
    return asyncio.ensure_future(opening)


def test_bytes_go_both_ways_unchanged_and_input_waits(container: Container) -> None:
    content = os.urandom(16_000_000)

    async def echo() -> tuple[bytes, int]:
        told = Told()
        script = f"until [ -e /tmp/go ]; do sleep 0.1; done; head -c {len(content)}; echo done >&2"
        stream = await opened(container, told, "sh", "-c", script)
        for start in range(0, len(content), 65536):
            if told.pauses == 1 and not told.writable.is_set():  # only now it begins to read
                await asyncio.to_thread(container.exec_run, ["touch", "/tmp/go"])
            await told.writable.wait()
            stream.write(content[start : start + 65536])
        async with asyncio.timeout(LONG_WAIT):
            await told.ended.wait()
            while await stream.exit_code(LONG_WAIT) is None:
                await asyncio.sleep(0.05)
        assert await stream.exit_code(LONG_WAIT) == 0
        assert stream.errors() == "done\n"
        stream.close()
        return hashlib.sha256(told.output).digest(), told.pauses

    digest, pauses = asyncio.run(echo())
    assert digest == hashlib.sha256(content).digest()
    assert pauses > 0


def test_closing_ends_the_input(container: Container) -> None:
    async def close() -> None:
        told = Told()
        stream = await opened(container, told, "sh", "-c", "cat >/dev/null; echo over >/tmp/over")
        stream.write(b"x")
        stream.close()
        async with asyncio.timeout(LONG_WAIT):
            while container.exec_run(["cat", "/tmp/over"]).output != b"over\n":
                await asyncio.sleep(0.1)

    asyncio.run(close())


def test_what_cannot_be_entered_says_why(container: Container) -> None:
    async def enter(endpoint: str, host: str = DOCKER_HOST) -> tuple[str, str]:
        with pytest.raises(LaunchError) as refused:
            await open_endpoint(endpoint, host, ["true"], Told(), timeout=LONG_WAIT)
        return refused.value.code, refused.value.message

    container.pause()
    try:
        code, message = asyncio.run(enter(f"docker-exec://{container.id}"))
        assert (code, message) == ("adapter-unavailable", "The workspace's container is paused.")
    finally:
        container.unpause()
    nowhere = f"docker-exec://{'0' * 64}"
    assert asyncio.run(enter(nowhere))[0] == "runtime-gone"
    for endpoint in ("docker-exec://" + "A" * 64, "docker-exec://"):
        assert asyncio.run(enter(endpoint))[0] == "runtime-gone"
    for endpoint in (f"ssh://{container.id}", "docker-exec://../../etc"):
        assert asyncio.run(enter(endpoint))[0] == "adapter-unavailable"
    for host in ("unix:///nowhere.sock", "tcp://127.0.0.1:1", "ftp://127.0.0.1"):
        assert asyncio.run(enter(nowhere, host))[0] == "adapter-unavailable"


def test_a_container_that_ends_ends_its_streams(container: Container) -> None:
    async def end() -> None:
        told = Told()
        stream = await opened(container, told, "sleep", "600")
        assert await stream.container_runs(LONG_WAIT) is True
        container.kill()
        async with asyncio.timeout(LONG_WAIT):
            await told.ended.wait()
        assert await stream.container_runs(LONG_WAIT) is False
        with pytest.raises(LaunchError) as refused:
            await opened(container, Told(), "true")
        assert refused.value.code == "runtime-not-running"

    asyncio.run(end())
