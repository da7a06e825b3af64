"""What a command in a container prints, all of it.

The SDK reads the head of an answer through a buffer and the output past it: what came along with
the head, because the engine was quicker, is lost to its ``exec_run``.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Any, cast

import docker
from docker.models.containers import Container

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.engine_api.asking import read_along
from workspaces.runtimes.docker.exec_channel import ExecChannel


def output_of(
    client: docker.DockerClient, container: Container, command: Sequence[str], *, seconds: float
) -> bytes:
    """Return what a command prints, and behind it the end of what it says on its standard error.

    Raises ``LaunchError`` when that is not all there within so many ``seconds``, and ``APIError``.
    """
    api = client.api

    def exit_status() -> tuple[bool, int | None]:
        found = api.exec_inspect(exec_id)
        return bool(found["Running"]), found["ExitCode"]

    exec_id = api.exec_create(container.id, list(command), stdin=True)["Id"]
    stream: Any = api.exec_start(exec_id, socket=True)
    connection = cast("socket.socket", getattr(stream, "_sock", stream))
    with contextlib.closing(stream):
        channel = ExecChannel(connection, read_along(connection, stream._response), exit_status)
        with contextlib.closing(channel), contextlib.suppress(LaunchError):
            if (answer := channel.answer(b"", seconds)) is not None:
                return answer.stdout + answer.stderr
    raise LaunchError(
        "adapter-unavailable", f"A container's answer to {command[0]} did not come as a whole."
    )
