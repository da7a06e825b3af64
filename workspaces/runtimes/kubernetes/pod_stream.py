"""An exec in a Pod for asyncio: its streams as they come, without a thread and without limit.

What ``pod_channel`` is for threads. Nothing is collected here: output is passed on piece by piece,
of its standard error the end is kept for the log.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import cast

from controlplane.subprocesses import Tail
from workspaces.runtimes.agent_streams import Receiver
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.kubernetes import pod_state
from workspaces.runtimes.kubernetes.agent_calls import relay_command
from workspaces.runtimes.kubernetes.cluster import PODS, Cluster
from workspaces.runtimes.kubernetes.exec_failures import refusal_of
from workspaces.runtimes.kubernetes.exec_wire import (
    END_OF_INPUT,
    ERRORS,
    KEEP_ALIVE_SECONDS,
    OUTPUT,
    SIGN_OF_LIFE,
    ExecRefused,
    ExecWire,
    exec_path,
)
from workspaces.runtimes.kubernetes.pods import WORKSPACE

ERROR_TAIL_BYTES = 8 * 1024
CLOSE_SECONDS = 5.0
WRITE_BUFFER_BYTES = 256 * 1024
TICK_SECONDS = 0.02


class PodStream(asyncio.Protocol):
    """The streams of one exec; ``open`` makes one. All of it belongs to one event loop."""

    def __init__(self, cluster: Cluster, pod: str, receiver: Receiver) -> None:
        self._cluster = cluster
        self._pod = pod
        self._receiver = receiver
        self._wire = ExecWire()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._said = Tail(ERROR_TAIL_BYTES)
        self._ended = False
        self._closing = False
        self._alive: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        cluster: Cluster,
        pod: str,
        arguments: Sequence[str],
        receiver: Receiver,
        *,
        timeout: float,
    ) -> PodStream:
        """Start the agent with ``arguments`` in the Pod and stay connected to it.

        Raises ``LaunchError``: ``runtime-gone``, ``runtime-not-running``, ``adapter-unavailable``.
        """
        stream = cls(cluster, pod, receiver)
        try:
            async with asyncio.timeout(timeout):
                await stream._begin(relay_command(arguments))
        except TimeoutError as error:
            stream.abort()
            raise LaunchError(
                "adapter-unavailable", "The cluster's API server does not begin the exec."
            ) from error
        except OSError as error:
            stream.abort()
            raise LaunchError(
                "adapter-unavailable", "The cluster's API server does not answer."
            ) from error
        except BaseException:
            stream.abort()
            raise
        return stream

    async def _begin(self, command: Sequence[str]) -> None:
        access = self._cluster.access
        # The kubeconfig may name a program that makes a token.
        headers = await asyncio.to_thread(access.headers)
        server = access.server()
        context, name = access.tls() if server.tls else (None, None)
        await self._loop.create_connection(
            lambda: self,
            server.host,
            server.port,
            ssl=context,
            server_hostname=(name or server.host) if context else None,
        )
        assert self._transport is not None
        path = server.path + exec_path(self._cluster.namespace, self._pod, WORKSPACE, command)
        self._transport.write(self._wire.request(f"{server.host}:{server.port}", path, headers))
        await self._answered

    # ----------------------------------------------------------------------- what the owner calls

    def write(self, data: bytes) -> None:
        """Give it these bytes as input; nothing once it has ended."""
        if self._transport is not None and not self._ended and not self._closing:
            for piece in self._wire.input(data):
                self._transport.write(piece)

    def close(self) -> None:
        """End its input after what was written, and the connection once it has ended."""
        if self._transport is not None and not self._ended and not self._closing:
            self._closing = True
            self._transport.write(self._wire.frame(END_OF_INPUT))
            # An agent that takes nothing would hold it open for ever.
            self._loop.call_later(CLOSE_SECONDS, self.abort)
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Give the connection up at once."""
        if self._alive is not None:
            self._alive.cancel()
        if self._transport is not None:
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
        """How much was written that the API server has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def errors(self) -> str:
        """Return the end of what it said on its standard error, for the log."""
        return self._said.bytes().decode("utf-8", "replace") or self._wire.failure

    async def exit_code(self, timeout: float) -> int | None:
        """Return how it ended; None while it runs, and when that cannot be known."""
        until = self._loop.time() + timeout
        while self._wire.exit_code is None and not self._wire.closed and self._loop.time() < until:
            await asyncio.sleep(TICK_SECONDS)
        return self._wire.exit_code

    async def container_runs(self, timeout: float) -> bool | None:
        """Return whether its Pod still runs; None when the API server does not say."""
        try:
            async with asyncio.timeout(timeout):
                pod = await asyncio.to_thread(self._cluster.get, PODS, self._pod)
        except (LaunchError, TimeoutError):
            return None
        return pod is not None and pod_state.is_running(pod)

    # -------------------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection, and keep it open."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        if (connection := self._transport.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Take the messages apart."""
        self._receive(data)

    def eof_received(self) -> bool:
        """End with the connection."""
        self._receive(None)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End, whatever was the reason."""
        self._receive(None)
        self._end()

    def pause_writing(self) -> None:
        """Pass on that nothing more should be written."""
        self._receiver.input_paused()

    def resume_writing(self) -> None:
        """Pass on that more can be written."""
        self._receiver.input_resumed()

    def _receive(self, data: bytes | None) -> None:
        try:
            found, answer = self._wire.receive(data)
        except ExecRefused as error:
            self._refuse(refusal_of(error.status, error.content))
            return
        if answer and self._transport is not None:
            self._transport.write(answer)
        if self._wire.opened and not self._answered.done():
            self._answered.set_result(None)
            self._stay_alive()
        for channel, piece in found:
            if channel == OUTPUT and not self._ended:
                self._receiver.output_received(piece)
            elif channel == ERRORS:
                self._said.feed(piece)
        if self._wire.closed:
            self._refuse(LaunchError("adapter-unavailable", "The exec did not begin."))
            self._end()

    def _refuse(self, error: LaunchError) -> None:
        if not self._answered.done():
            self._answered.set_exception(error)

    def _stay_alive(self) -> None:
        if self._transport is not None and not self._ended:
            self._transport.write(self._wire.frame(SIGN_OF_LIFE))
            self._alive = self._loop.call_later(KEEP_ALIVE_SECONDS, self._stay_alive)

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._alive is not None:
            self._alive.cancel()
        if self._transport is not None:
            self._transport.close()
        answered = self._answered
        if answered.done() and not answered.cancelled() and answered.exception() is None:
            self._receiver.output_ended()
