"""Asking the agent in a container how its boot is getting on."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any, cast

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from workspaces.runtimes import boot

STATUS_WAIT_SECONDS = 2
EXEC_GRACE_SECONDS = 10.0
TICK_SECONDS = 0.2


def ask(
    client: docker.DockerClient,
    container: Container,
    cancelled: threading.Event,
    *,
    limit: float,
) -> boot.BootStatus | None:
    """Ask the agent how the boot is getting on; it takes up to two seconds to wait for news.

    None when it gave no answer that makes sense: it may not be up yet, or have ended. Raises
    ``NotFound`` when there is no such container any more.
    """
    command = [boot.AGENT, "status", "--wait", str(STATUS_WAIT_SECONDS)]
    api = client.api
    try:
        exec_id = api.exec_create(container.id, command, stderr=False, user="root")["Id"]
        stream: Any = api.exec_start(exec_id, socket=True)
    except NotFound:
        raise
    except APIError:
        # Not running, being started again, or out of processes; the caller looks at its state.
        return None
    # The SDK's own reader has no time limit, so the frames are read here.
    connection = cast("socket.socket", getattr(stream, "_sock", stream))
    try:
        seconds = min(limit, STATUS_WAIT_SECONDS + EXEC_GRACE_SECONDS)
        early = read_along(connection, stream._response)
        return boot.parse_status(_frames(connection, early, seconds, cancelled))
    finally:
        stream.close()
        connection.close()


def last_status(container: Container) -> boot.BootStatus | None:
    """Read the status that the agent left in a container, running or not."""
    try:
        chunks, _ = container.get_archive(boot.STATUS_FILE)
    except NotFound:
        return None
    data = boot.read_archived_file(chunks)
    return None if data is None else boot.parse_status(data)


def read_along(connection: socket.socket, response: Any) -> bytes:
    """Return what the SDK has read of the output along with the head of the answer."""
    connection.settimeout(0)  # where that is nothing, the buffer would wait for more
    early: bytes = response.raw._fp.fp.peek()
    return early


def _frames(
    connection: socket.socket, early: bytes, seconds: float, cancelled: threading.Event
) -> bytes:
    """Return the payload of an exec's output frames, as far as it came in the time given."""
    deadline = time.monotonic() + seconds
    collected = bytearray(early)
    connection.settimeout(TICK_SECONDS)
    while time.monotonic() < deadline and not cancelled.is_set():
        try:
            chunk = connection.recv(65536)
        except TimeoutError:
            continue
        if not chunk or len(collected) > boot.MAX_STATUS_BYTES:
            break
        collected += chunk
    # Each frame: stream number, three zero bytes, length (big endian), then the payload.
    payload, offset = bytearray(), 0
    while offset + 8 <= len(collected):
        size = int.from_bytes(collected[offset + 4 : offset + 8], "big")
        payload += collected[offset + 8 : offset + 8 + size]
        offset += 8 + size
    return bytes(payload)
