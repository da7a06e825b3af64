"""A connection to a process in a Pod for threads: an exec's WebSocket with its socket."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from controlplane.subprocesses import Tail
from workspaces.runtimes.base import AgentAnswer, LaunchError
from workspaces.runtimes.kubernetes.cluster_access import Access
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

READ_BYTES = 256 * 1024
ERROR_TAIL_BYTES = 8 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024
EXIT_SECONDS = 5.0
GIVEN_UP_SECONDS = 0.2
_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError, InterruptedError)


class Conversation(Protocol):
    """What takes input and gives output."""

    def post(self, data: bytes, *, end: bool = False) -> None:
        """Have ``data`` sent while its output is read, and then the ``end`` of its input."""

    def read(self, timeout: float, *, wake: int = -1) -> bytes | None:
        """Return the next bytes of its output, ``b""`` at the end, None when none came in time."""


class ExecChannel:
    """The streams of one exec. One thread may read while another one writes; any may close.

    ``framed``: the other side is the relay, which takes frames as input.
    """

    def __init__(self, connection: socket.socket, wire: ExecWire, *, framed: bool) -> None:
        self._socket = connection
        self._wire = wire
        self._framed = framed
        self._output: list[bytes] = []
        self._said = Tail(ERROR_TAIL_BYTES)
        self._to_send = bytearray()
        self._sent_at = time.monotonic()
        self._closed = False
        # An object of OpenSSL is for one thread at a time; nothing waits while it is held.
        self._tls = threading.Lock()
        self._reading = threading.Lock()
        self._writing = threading.Lock()

    @classmethod
    def open(
        cls,
        access: Access,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        *,
        timeout: float,
        framed: bool = True,
    ) -> ExecChannel:
        """Start a command in a container and stay connected to it.

        Raises ``runtime-gone``, ``runtime-not-running``, and ``adapter-unavailable``.
        """
        deadline = time.monotonic() + timeout
        server = access.server()
        wire = ExecWire()
        path = server.path + exec_path(namespace, pod, container, command)
        try:
            connection = _connect(access, timeout)
        except OSError as error:
            raise LaunchError(
                "adapter-unavailable", "The cluster's API server does not answer."
            ) from error
        channel = cls(connection, wire, framed=framed)
        try:
            host = f"{server.host}:{server.port}"
            channel._to_send += wire.request(host, path, access.headers())
            while not wire.opened:
                if time.monotonic() >= deadline or wire.closed:
                    raise LaunchError(
                        "adapter-unavailable", "The cluster's API server does not begin the exec."
                    )
                events = select.POLLIN | (select.POLLOUT if channel._to_send else 0)
                if channel._wait(events, deadline):
                    channel._exchange()
        except ExecRefused as error:
            channel.close()
            raise refusal_of(error.status, error.content) from error
        except BaseException:
            channel.close()
            raise
        return channel

    # --------------------------------------------------------------------------------- reading

    def read(self, timeout: float, *, wake: int = -1) -> bytes | None:
        """Return the next bytes of its output, ``b""`` at the end, None when none came in time.

        Also None when the descriptor ``wake`` becomes readable first.
        """
        deadline = time.monotonic() + timeout
        with self._reading:
            while True:
                if self._output:
                    found, self._output = b"".join(self._output), []
                    return found
                if self._wire.closed or self._closed:
                    return b""
                self._stay_alive()
                until = min(deadline, time.monotonic() + KEEP_ALIVE_SECONDS)
                # What was posted goes on its way while it reads.
                events = select.POLLIN | (select.POLLOUT if self._to_send else 0)
                if self._wait(events, until, wake):
                    self._exchange()
                    # Its standard error alone can keep the connection readable for ever.
                    if not self._output and time.monotonic() >= deadline:
                        return None
                elif until == deadline or _readable(wake):
                    return None

    # --------------------------------------------------------------------------------- writing

    def write(
        self, data: bytes, *, timeout: float | None = None, within: float | None = None
    ) -> None:
        """Give it all of ``data`` as input; waits while it does not take any.

        Raises ``adapter-unavailable`` when the connection is lost, and ``agent-silent`` when
        nothing is taken for ``timeout`` seconds, or not all of it ``within`` so many.
        """
        began = time.monotonic()
        pieces = self._wire.input(data) if self._framed else [self._wire.frame(data)]
        with self._writing:
            for piece in pieces:
                left = None if within is None else within - (time.monotonic() - began)
                self._send_all(piece, timeout, left)

    def close_input(self) -> None:
        """End its input."""
        with contextlib.suppress(LaunchError), self._writing:
            self._send_all(self._wire.frame(END_OF_INPUT), EXIT_SECONDS, EXIT_SECONDS)

    def _send_all(self, piece: bytes, timeout: float | None, within: float | None) -> None:
        began = took_at = time.monotonic()
        with self._tls:
            self._to_send += piece
        while self._to_send:
            if within is not None and time.monotonic() - began >= within:
                raise LaunchError("agent-silent", "The workspace reads too slowly.")
            if self._closed or self._wire.closed:
                raise _lost()
            before = len(self._to_send)
            if self._wait(select.POLLOUT, time.monotonic() + 1.0):
                with self._tls:
                    self._send()
            if len(self._to_send) < before:
                took_at = time.monotonic()
            elif timeout is not None and time.monotonic() - took_at >= timeout:
                raise LaunchError("agent-silent", "The workspace no longer reads.")

    def post(self, data: bytes, *, end: bool = False) -> None:
        """Have ``data`` sent while its output is read, and then the ``end`` of its input."""
        pieces = list(self._wire.input(data)) if self._framed else [self._wire.frame(data)]
        if end and self._framed:
            pieces.append(self._wire.frame(END_OF_INPUT))
        with self._tls:
            self._to_send += b"".join(pieces)
            self._send()

    # ------------------------------------------------------------------------------- the whole

    def answer(self, stdin: bytes, timeout: float) -> AgentAnswer | None:
        """Give it ``stdin`` and return what it says until its end; None when that takes longer."""
        said = all_of(self, stdin, timeout)
        if said is None:
            return None
        code = self.exit_code()
        if code is None:
            raise LaunchError("runtime-not-running", "The workspace's Pod ended meanwhile.")
        return AgentAnswer(code, said, self._said.bytes())

    def is_quiet(self) -> bool:
        """Whether it is connected and nothing came that nobody has read."""
        if self._wait(select.POLLIN, 0.0):
            self._exchange()
        return not (self._wire.closed or self._closed or self._output)

    @property
    def protocol(self) -> str:
        """Which version of the protocol the API server has chosen."""
        return self._wire.protocol

    def exit_code(self) -> int | None:
        """Return how it ended; None while it runs, and when that cannot be known any more."""
        return self._wire.exit_code

    def errors(self) -> str:
        """Return the end of what it said on its standard error, for the log."""
        said = self._said.bytes().decode("utf-8", "replace")
        return said or self._wire.failure

    def close(self) -> None:
        """Give the connection up, whatever the other side does; the others' calls end."""
        self._closed = True
        # Whoever is in the middle of a call needs the TLS that this takes away.
        with self._tls, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._reading, self._writing, self._tls:
            self._socket.close()

    # --------------------------------------------------------------------------------- details

    def _stay_alive(self) -> None:
        if self._framed and time.monotonic() - self._sent_at >= KEEP_ALIVE_SECONDS:
            with self._tls:
                self._sent_at = time.monotonic()
                self._to_send += self._wire.frame(SIGN_OF_LIFE)
                self._send()

    def _exchange(self) -> None:
        """Send what can be sent and take what is there."""
        with self._tls:
            if self._closed:
                # What still comes is not decrypted any more.
                self._wire.closed = True
                return
            data = self._arrived()
            if data == b"":
                return
            found, answer = self._wire.receive(data)
            self._to_send += answer
            for channel, piece in found:
                if channel == OUTPUT:
                    self._output.append(piece)
                elif channel == ERRORS:
                    self._said.feed(piece)

    def _arrived(self) -> bytes | None:
        """Send what can be sent and return what is there, None at the end of the connection."""
        pieces: list[bytes] = []
        size = 0
        try:
            self._send()
            # Of TLS each call gives one record, of 16 KiB at most.
            while size < READ_BYTES:
                piece = self._socket.recv(READ_BYTES - size)
                if not piece:
                    break
                pieces.append(piece)
                size += len(piece)
        except _WAITS:
            return b"".join(pieces)
        except OSError:
            pass
        # The next look finds the end of the connection again.
        return b"".join(pieces) or None

    def _send(self) -> None:
        while self._to_send:
            try:
                count = self._socket.send(memoryview(self._to_send)[:READ_BYTES].tobytes())
            except _WAITS:
                return
            except OSError:
                self._wire.closed = True
                return
            del self._to_send[:count]
            self._sent_at = time.monotonic()

    def _wait(self, events: int, deadline: float, wake: int = -1) -> int:
        """Return what the connection is ready for; 0 when that is nothing until the deadline."""
        if self._closed:
            return events
        # What has been decrypted already makes no socket readable.
        if events & select.POLLIN and isinstance(self._socket, ssl.SSLSocket):
            with self._tls:
                if self._socket.pending():
                    return select.POLLIN
        poll = select.poll()
        poll.register(self._socket, events)
        if wake >= 0:
            poll.register(wake, select.POLLIN)
        found = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        return found.get(self._socket.fileno(), 0)


def all_of(
    channel: Conversation,
    stdin: bytes,
    timeout: float,
    cancelled: Callable[[], bool] | None = None,
) -> bytes | None:
    """Give a process ``stdin`` and return its output until the end; None when that takes longer.

    None too when ``cancelled``, which is asked several times in a second.
    """
    deadline = time.monotonic() + timeout
    channel.post(stdin, end=True)
    said: list[bytes] = []
    size = 0
    while True:
        seconds = max(0.0, deadline - time.monotonic())
        data = channel.read(seconds if cancelled is None else min(seconds, GIVEN_UP_SECONDS))
        if data == b"":
            return b"".join(said)
        if time.monotonic() >= deadline or (cancelled is not None and cancelled()):
            return None
        if data is not None:
            said.append(data)
            size += len(data)
        if size > MAX_ANSWER_BYTES:
            raise LaunchError("agent-silent", "The agent in the workspace does not stop.")


def _connect(access: Access, timeout: float) -> socket.socket:
    server = access.server()
    connection = socket.create_connection((server.host, server.port), timeout=timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if server.tls:
            context, name = access.tls()
            connection = context.wrap_socket(connection, server_hostname=name or server.host)
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection


def _readable(descriptor: int) -> bool:
    if descriptor < 0:
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _lost() -> LaunchError:
    return LaunchError("adapter-unavailable", "The connection to the workspace's agent was lost.")
