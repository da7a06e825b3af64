"""The way into a workspace for asyncio: by the agent's own socket where that can be reached.

Elsewhere an exec of the engine leads there.
Over the socket nothing of the engine lies between a gateway and the agent, neither when a call
begins nor for any byte of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from controlplane.subprocesses import Tail
from workspaces.runtimes import boot
from workspaces.runtimes.agent_streams import AgentStream, Receiver
from workspaces.runtimes.docker import agent_socket
from workspaces.runtimes.docker.agent_socket import Called
from workspaces.runtimes.docker.remote.engine_folders import place_of
from workspaces.runtimes.docker.streams import (
    CLOSE_SECONDS,
    CONTAINER_ID,
    ERROR_TAIL_BYTES,
    WRITE_BUFFER_BYTES,
    ExecStream,
    inspect_container,
    runs,
)

NO_ENGINES = Path("/nonexistent")
TICK_SECONDS = 0.02
SOCKET_BYTES = 1024 * 1024


class SocketStream(asyncio.Protocol):
    """A call over the agent's socket. All of it belongs to one event loop."""

    def __init__(
        self, docker_host: str, container_id: str, called: Called, receiver: Receiver
    ) -> None:
        self._docker_host = docker_host
        self._container_id = container_id
        self._pid = called.pid
        self._errors = called.errors
        self._ending = called.ending
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ended = False
        self._lost = False
        self._code: int | None = None
        self._said = Tail(ERROR_TAIL_BYTES)

    @classmethod
    async def over(
        cls, docker_host: str, container_id: str, called: Called, receiver: Receiver
    ) -> SocketStream:
        """Make one of a call under way, which belongs to the stream from now on."""
        stream = cls(docker_host, container_id, called, receiver)
        called.connection.setblocking(False)
        os.set_blocking(called.errors, False)
        _widen(called.connection)
        stream._loop.add_reader(called.errors, stream._take_errors)
        try:
            # On a connection that stands nothing is waited for that could take long.
            await stream._loop.create_unix_connection(lambda: stream, sock=called.connection)
        except BaseException:
            called.connection.close()
            stream._release()
            raise
        return stream

    def write(self, data: bytes) -> None:
        """Give it these bytes as input; nothing once it has ended."""
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    def close(self) -> None:
        """End its input after what was written, and the connection."""
        if self._transport is not None:
            self._transport.close()
            # An agent that takes nothing would hold it open for ever.
            self._loop.call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """Give the connection up at once."""
        if self._transport is not None and not self._lost:
            self._transport.abort()

    def pause_output(self) -> None:
        """Have its output wait for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_output(self) -> None:
        """Go on after ``pause_output``."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def waiting_bytes(self) -> int:
        """How much was written that the agent has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def errors(self) -> str:
        """Return the end of what it said on its standard error, for the log."""
        self._take_errors()
        return self._said.bytes().decode("utf-8", "replace")

    async def exit_code(self, timeout: float) -> int | None:
        """Return how it ended; None while it runs, and when that cannot be known."""
        self._note_end()
        until = self._loop.time() + timeout
        # Its output ends a moment before the first process reaps it.
        while self._code is None and self._may_still_tell and self._loop.time() < until:
            await asyncio.sleep(TICK_SECONDS)
            self._note_end()
        return self._code

    async def container_runs(self, timeout: float) -> bool | None:
        """Return whether its container still runs; None when the engine does not say."""
        return runs(await inspect_container(self._docker_host, self._container_id, timeout))

    # -------------------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Pass on what the agent sends."""
        if not self._ended:
            self._receiver.output_received(data)

    def eof_received(self) -> bool:
        """End with the output: nobody can read the input any more."""
        self._end()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End, whatever was the reason."""
        self._end()
        self._lost = True
        self._take_errors()
        # How it ended is told a moment later.
        self._loop.call_later(CLOSE_SECONDS, self._release)

    def pause_writing(self) -> None:
        """Pass on that nothing more should be written."""
        self._receiver.input_paused()

    def resume_writing(self) -> None:
        """Pass on that more can be written."""
        self._receiver.input_resumed()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._receiver.output_ended()

    def _take_errors(self) -> None:
        while self._errors >= 0:
            try:
                said = os.read(self._errors, ERROR_TAIL_BYTES)
            except OSError:
                return
            if not said:
                self._close_errors()
                return
            self._said.feed(said)
            if len(said) < ERROR_TAIL_BYTES:
                return

    def _close_errors(self) -> None:
        errors, self._errors = self._errors, -1
        self._loop.remove_reader(errors)
        os.close(errors)

    @property
    def _may_still_tell(self) -> bool:
        return self._ended and self._ending >= 0

    def _note_end(self) -> None:
        if self._ending >= 0 and self._code is None:
            self._code = agent_socket.ended(self._ending)

    def _release(self) -> None:
        self._take_errors()
        if self._errors >= 0:
            self._close_errors()
        self._note_end()
        ending, self._ending = self._ending, -1
        if ending >= 0:
            os.close(ending)


def _widen(connection: socket.socket) -> None:
    """Have a connection hold more, so that a stream needs fewer switches between processes."""
    for option in (_SNDBUFFORCE, _RCVBUFFORCE):
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)


_SNDBUFFORCE = 32
_RCVBUFFORCE = 33


async def open_endpoint(
    endpoint: str,
    docker_host: str,
    argv: Sequence[str],
    receiver: Receiver,
    *,
    timeout: float,
    engines: Path = NO_ENGINES,
) -> AgentStream:
    """Start ``argv`` where the control plane says that a workspace is: ``docker-exec://<id>``.

    ``engines`` is the folder of the engines besides that of ``docker_host``. The agent is called
    over its own socket where this process may, anything else by the engine. Raises ``LaunchError``
    as ``ExecStream.open`` does.
    """
    docker_host, container_id = place_of(endpoint, docker_host, engines)
    if argv[0] == boot.AGENT and os.geteuid() == 0:
        loop = asyncio.get_running_loop()
        began = loop.time()
        stream = await _directly(container_id, docker_host, list(argv[1:]), receiver, timeout)
        if stream is not None:
            return stream
        timeout = max(0.0, began + timeout - loop.time())
    return await ExecStream.open(docker_host, container_id, argv, receiver, timeout=timeout)


async def _directly(
    container_id: str,
    docker_host: str,
    arguments: Sequence[str],
    receiver: Receiver,
    timeout: float,
) -> SocketStream | None:
    """Call the agent over its socket; None where the engine has to say what is wrong, or do it."""
    pid = await first_process(container_id, docker_host, timeout)
    if pid is None:
        return None
    # A thread of its own: a workspace that does not answer must keep nobody else waiting.
    pool = ThreadPoolExecutor(1, "agent-call")
    calling = asyncio.get_running_loop().run_in_executor(
        pool, agent_socket.call_process, pid, list(arguments)
    )
    pool.shutdown(wait=False)
    try:
        async with asyncio.timeout(timeout):
            called = await asyncio.shield(calling)
    except TimeoutError:
        calling.add_done_callback(_hang_up)
        return None
    except asyncio.CancelledError:
        calling.add_done_callback(_hang_up)
        raise
    if called is None:
        return None
    return await SocketStream.over(docker_host, container_id, called, receiver)


async def first_process(container_id: str, docker_host: str, timeout: float) -> int | None:
    """Return the first process of a container that runs on this machine; None for any other."""
    if not CONTAINER_ID.fullmatch(container_id):
        return None
    found = await inspect_container(docker_host, container_id, timeout)
    state = found.get("State")
    if not isinstance(state, dict) or not state.get("Running") or state.get("Paused"):
        return None
    pid = state.get("Pid")
    if not isinstance(pid, int) or not agent_socket.is_first_process(pid, container_id):
        return None
    return pid if Path(f"/proc/{pid}/root").exists() else None


def _hang_up(calling: asyncio.Future[Called | None]) -> None:
    """Let go of a call that nobody waits for any more."""
    if calling.cancelled() or calling.exception() is not None:
        return
    called = calling.result()
    if called is not None:
        called.connection.close()
        os.close(called.errors)
        os.close(called.ending)
