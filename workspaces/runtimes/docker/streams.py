"""An exec in a container for asyncio: its streams as they come, without a thread and without limit.

What ``exec_channel`` is for threads. The exec is created and started over one connection, which the
engine then hands over; its output arrives as frames: stream number, three zero bytes, length (big
endian), payload. A container's process decides how much that is, so nothing is collected here:
output is passed on piece by piece, of its standard error the end is kept for the log.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from controlplane.subprocesses import Tail
from workspaces.runtimes.agent_streams import Receiver
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker import wire

CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
ERROR_TAIL_BYTES = 8 * 1024
MAX_ANSWER_BYTES = 1024 * 1024
CLOSE_SECONDS = 5.0
"""How long the engine may take to accept what was written before a close."""
WRITE_BUFFER_BYTES = 256 * 1024

_ANSWER = b"HTTP/1."
_HEADER = 8
_STDOUT = 1


class ExecStream(asyncio.Protocol):
    """The streams of one exec; ``open`` makes one. All of it belongs to one event loop."""

    def __init__(self, docker_host: str, container_id: str, receiver: Receiver) -> None:
        self._docker_host = docker_host
        self._container_id = container_id
        self._exec_id = ""
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[None] | None = None
        self._received = b""
        self._stream = 0
        self._left = 0
        self._started = False
        self._ended = False
        self._lost = False
        self._said = Tail(ERROR_TAIL_BYTES)

    @classmethod
    async def open(
        cls,
        docker_host: str,
        container_id: str,
        argv: Sequence[str],
        receiver: Receiver,
        *,
        timeout: float,
    ) -> ExecStream:
        """Start ``argv`` as root in the container and stay connected to it.

        Raises ``LaunchError``: ``runtime-gone``, ``runtime-not-running``, and
        ``adapter-unavailable`` for an engine that does not answer and a paused container.
        """
        if not CONTAINER_ID.fullmatch(container_id):
            raise LaunchError("runtime-gone", "The workspace has no container.")
        stream = cls(docker_host, container_id, receiver)
        try:
            async with asyncio.timeout(timeout):
                await stream._connect()
                await stream._start(argv)
        except BaseException as error:
            stream.abort()
            if isinstance(error, (OSError, ValueError, RecursionError)):
                raise LaunchError(
                    "adapter-unavailable", "The Docker Engine does not answer."
                ) from error
            raise
        return stream

    # ------------------------------------------------------------------------------------- writing

    def write(self, data: bytes) -> None:
        """Give it these bytes as input; nothing once it has ended.

        What it does not take is kept: whoever writes has to stop while ``input_paused``.
        """
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    def close(self) -> None:
        """End its input after what was written, and the connection."""
        if self._transport is not None:
            self._transport.close()
            # An engine that takes nothing would hold it open for ever.
            self._loop.call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """Give the connection up at once."""
        if self._transport is not None and not self._lost:
            self._transport.abort()

    def pause_output(self) -> None:
        """Have the engine keep its output for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_output(self) -> None:
        """Go on after ``pause_output``."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def waiting_bytes(self) -> int:
        """How much was written that the engine has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def errors(self) -> str:
        """Return the end of what it said on its standard error, for the log."""
        return self._said.bytes().decode("utf-8", "replace")

    async def exit_code(self, timeout: float) -> int | None:
        """Return how it ended; None while it runs, and when that cannot be known."""
        found = await self._inspect(f"/exec/{self._exec_id}/json", timeout)
        code = None if found.get("Running") else found.get("ExitCode")
        return code if isinstance(code, int) else None

    async def container_runs(self, timeout: float) -> bool | None:
        """Return whether its container still runs; None when the engine does not say."""
        found = await inspect_container(self._docker_host, self._container_id, timeout)
        return runs(found)

    async def _inspect(self, path: str, timeout: float) -> dict[str, Any]:
        return await _inspect(self._docker_host, path, timeout)

    # ------------------------------------------------------------------------------------ starting

    async def _connect(self) -> None:
        address = urlsplit(self._docker_host)
        if address.scheme == "unix":
            path = f"/{self._docker_host.removeprefix('unix://').lstrip('/')}"
            await self._loop.create_unix_connection(lambda: self, path)
            return
        if address.scheme not in ("tcp", "http") or not address.hostname:
            raise LaunchError("adapter-unavailable", "The Docker Engine's address is not usable.")
        transport, _ = await self._loop.create_connection(
            lambda: self, address.hostname, address.port or 2375
        )
        connection = transport.get_extra_info("socket")
        # A machine that is gone says nothing; without this nobody would ever know.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    async def _start(self, argv: Sequence[str]) -> None:
        wanted = {
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "User": "root",
            "Cmd": list(argv),
        }
        status, body = await self._ask("POST", f"/containers/{self._container_id}/exec", wanted)
        if status == 409 and b"paused" in body:
            raise LaunchError("adapter-unavailable", "The workspace's container is paused.")
        if status != 201:
            raise wire.refusal(status, body)
        try:
            self._exec_id = str(json.loads(body)["Id"])
        except (ValueError, KeyError, TypeError) as error:
            raise wire.refusal(0, b"an exec without an id") from error
        if not CONTAINER_ID.fullmatch(self._exec_id):
            raise wire.refusal(0, b"an exec without an id")
        path = f"/exec/{self._exec_id}/start"
        self._request("POST", path, {"Detach": False, "Tty": False}, upgrade=True)
        status, headers = await self._header()
        # Engines of old answer 200 and upgrade all the same.
        if status not in (101, 200):
            raise wire.refusal(status, await self._body(headers))
        self._started = True
        cast("asyncio.Transport", self._transport).set_write_buffer_limits(WRITE_BUFFER_BYTES)
        received, self._received = self._received, b""
        if received:
            self._take(received)

    async def _ask(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        self._request(method, path, body)
        status, headers = await self._header()
        return status, await self._body(headers)

    def _request(self, method: str, path: str, body: Any, *, upgrade: bool = False) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        upgrading = "Connection: Upgrade\r\nUpgrade: tcp\r\n" if upgrade else ""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
            f"{upgrading}Content-Length: {len(content)}\r\n\r\n"
        )
        cast("asyncio.Transport", self._transport).write(head.encode() + content)

    async def _header(self) -> tuple[int, dict[bytes, bytes]]:
        while b"\r\n\r\n" not in self._received:
            if not _ANSWER.startswith(self._received[: len(_ANSWER)]):
                # Whatever sends something else may never end its header.
                raise OSError("not an answer of a Docker Engine")
            await self._more()
        header = await self._until(b"\r\n\r\n")
        answer = re.match(rb"HTTP/1\.[01] (\d{3})", header)
        if answer is None:
            raise OSError("not an answer of a Docker Engine")
        lines = (line.partition(b":") for line in header.split(b"\r\n")[1:])
        return int(answer[1]), {name.strip().lower(): value.strip() for name, _, value in lines}

    async def _body(self, headers: dict[bytes, bytes]) -> bytes:
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            parts, left = [], MAX_ANSWER_BYTES
            while size := int((await self._until(b"\r\n")).split(b";")[0], 16):
                left -= size
                if size < 0 or left < 0:
                    raise OSError("the engine's answer is too long")
                parts.append((await self._exactly(size + 2))[:-2])
            await self._until(b"\r\n")
            return b"".join(parts)
        length = headers.get(b"content-length", b"0")
        return await self._exactly(int(length) if length.isdigit() else 0)

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._received:
            await self._more()
        found, _, self._received = self._received.partition(mark)
        return found

    async def _exactly(self, size: int) -> bytes:
        if size > MAX_ANSWER_BYTES:
            raise OSError("the engine's answer is too long")
        while len(self._received) < size:
            await self._more()
        found, self._received = self._received[:size], self._received[size:]
        return found

    async def _more(self) -> None:
        if self._ended or len(self._received) > MAX_ANSWER_BYTES:
            raise OSError("no answer from the engine")
        self._answer = self._loop.create_future()
        await self._answer

    # -------------------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take apart what the engine sends."""
        if self._started:
            self._take(data)
            return
        self._received += data
        self._wake()

    def eof_received(self) -> bool:
        """End with the output: nobody can read the input any more."""
        self._end()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End, whatever was the reason."""
        self._lost = True
        self._end()

    def pause_writing(self) -> None:
        """Pass on that nothing more should be written."""
        if self._started:
            self._receiver.input_paused()

    def resume_writing(self) -> None:
        """Pass on that more can be written."""
        if self._started:
            self._receiver.input_resumed()

    def _wake(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._wake()
        if self._started:
            self._receiver.output_ended()

    def _take(self, data: bytes) -> None:
        if self._received:
            data, self._received = self._received + data, b""
        at, size = 0, len(data)
        while at < size and not self._ended:
            if self._left == 0:
                if size - at < _HEADER:
                    self._received = data[at:]
                    return
                self._stream = data[at]
                self._left = int.from_bytes(data[at + 4 : at + _HEADER], "big")
                at += _HEADER
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            if self._stream == _STDOUT:
                self._receiver.output_received(piece)
            else:
                self._said.feed(piece)


async def inspect_container(docker_host: str, container_id: str, timeout: float) -> dict[str, Any]:
    """Return how the engine describes a container.

    With ``status`` alone when it refuses, and {} when it does not answer.
    """
    return await _inspect(docker_host, f"/containers/{container_id}/json", timeout)


def runs(description: dict[str, Any]) -> bool | None:
    """Return whether a container that was described runs; None when that was not told."""
    if description.get("status") == 404:
        return False
    state = description.get("State")
    return bool(state.get("Running")) if isinstance(state, dict) else None


async def _inspect(docker_host: str, path: str, timeout: float) -> dict[str, Any]:
    asking = ExecStream(docker_host, "", _NOBODY)
    try:
        async with asyncio.timeout(timeout):
            await asking._connect()
            status, body = await asking._ask("GET", path, None)
        found = json.loads(body)
    except (OSError, TimeoutError, ValueError, RecursionError, LaunchError):
        return {}
    finally:
        asking._ended = True
        asking.abort()
    if not isinstance(found, dict):
        return {}
    return found if status == 200 else {"status": status}


class _Nobody:
    """Who only asks gets no output."""

    def output_received(self, data: bytes) -> None:
        """Take nothing."""

    def input_paused(self) -> None:
        """Write nothing anyway."""

    def input_resumed(self) -> None:
        """Write nothing anyway."""

    def output_ended(self) -> None:
        """Wait for nothing."""


_NOBODY = _Nobody()
