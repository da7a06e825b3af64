"""A connection to the agent in a container: an exec's streams, taken apart as they come.

The engine sends what the agent writes as frames: stream number, three zero bytes, length (big
endian), payload. One ``recv`` takes as much as there is and the payloads are cut out of it once, so
the cost of a byte does not depend on how the engine cut the stream.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable

from controlplane.subprocesses import Tail
from workspaces.runtimes.base import AgentAnswer, LaunchError

READ_BYTES = 256 * 1024
FIRST_READ_BYTES = 16 * 1024
"""Room for as much is made once that has been filled: many channels have little to say."""
WRITE_BYTES = 256 * 1024
ERROR_TAIL_BYTES = 8 * 1024
MAX_ANSWER_BYTES = 16 * 1024 * 1024
EXIT_SECONDS = 5.0
"""How long the engine may take to know the exit code after the streams have ended."""
TICK_SECONDS = 0.05
GIVEN_UP_SECONDS = 0.2

_HEADER = 8
_STDOUT = 1


class ExecChannel:
    """The streams of one exec. One thread may read while another one writes; any may close.

    ``exit_status`` asks the engine: (whether it still runs, its exit code if that is known). Its
    failures are this channel's "not known".
    """

    tick_seconds = TICK_SECONDS
    """How often the exit code is asked for once the output has ended."""

    def __init__(
        self,
        connection: socket.socket,
        received: bytes,
        exit_status: Callable[[], tuple[bool, int | None]],
    ) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._exit_status = exit_status
        self._exit_code: int | None = None
        self._pending = received
        self._stream = 0
        self._left = 0
        self._ended = False
        self._closed = False
        self._said = Tail(ERROR_TAIL_BYTES)
        self._buffer = bytearray(FIRST_READ_BYTES)
        self._reading = threading.Lock()
        self._writing = threading.Lock()

    # ------------------------------------------------------------------------------------- reading

    def read(self, timeout: float, *, wake: int = -1) -> bytes | None:
        """Return the next bytes of its output, ``b""`` at the end, None when none came in time.

        Also None when the descriptor ``wake`` becomes readable first.
        """
        deadline = time.monotonic() + timeout
        with self._reading:
            while True:
                found = self._take_pending()
                if found:
                    return found
                if self._ended or self._closed:
                    return b""
                if not self._wait(select.POLLIN, deadline, wake):
                    return None
                self._receive()
                # Its standard error alone can keep the connection readable for ever.
                if time.monotonic() >= deadline:
                    return self._take_pending() or None

    def _receive(self) -> None:
        try:
            count = self._socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if count == 0:
            self._ended = True
            return
        received = memoryview(self._buffer)[:count]
        self._pending = b"".join((self._pending, received))
        if count == len(self._buffer) < READ_BYTES:
            self._buffer = bytearray(READ_BYTES)

    def _take_pending(self) -> bytes:
        """Return the output in what was received; keep an incomplete frame header for later."""
        if not self._pending:
            return b""
        data = memoryview(self._pending)
        at, output = 0, []
        while at < len(data):
            if self._left == 0:
                if len(data) - at < _HEADER:
                    break
                self._stream = data[at]
                self._left = int.from_bytes(data[at + 4 : at + _HEADER], "big")
                at += _HEADER
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            if self._stream == _STDOUT:
                output.append(piece)
            else:
                self._said.feed(bytes(piece))
        found = b"".join(output)
        self._pending = bytes(data[at:])
        return found

    # ------------------------------------------------------------------------------------- writing

    def write(
        self, data: bytes, *, timeout: float | None = None, within: float | None = None
    ) -> None:
        """Give it all of ``data`` as input; waits while it does not take any.

        Raises ``adapter-unavailable`` when the connection is lost, was closed, or has been read to
        its end, and ``agent-silent`` when nothing is taken for ``timeout`` seconds, or when not all
        of it is taken ``within`` so many.
        """
        rest = memoryview(data)
        began = took_at = time.monotonic()
        with self._writing:
            while rest:
                if within is not None and time.monotonic() - began >= within:
                    raise LaunchError("agent-silent", "The workspace reads too slowly.")
                # The engine keeps its half open for a while after the program has ended.
                if self._closed or self._ended:
                    raise _lost()
                if self._wait(select.POLLOUT, time.monotonic() + 1.0):
                    count = self._send(rest)
                    rest = rest[count:]
                    took_at = time.monotonic() if count else took_at
                elif timeout is not None and time.monotonic() - took_at >= timeout:
                    raise LaunchError("agent-silent", "The workspace no longer reads.")

    def _send(self, data: memoryview) -> int:
        try:
            return self._socket.send(data[:WRITE_BYTES])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise _lost() from error

    def close_input(self) -> None:
        """End its input; the engine passes the half-closed connection on."""
        with self._writing, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    # ---------------------------------------------------------------------------------- the whole

    def answer(
        self, stdin: bytes, timeout: float, *, cancelled: Callable[[], bool] | None = None
    ) -> AgentAnswer | None:
        """Give it ``stdin`` and return what it says until its end; None when that takes longer.

        None too when ``cancelled``, which is asked several times in a second. Raises
        ``agent-silent`` for an answer that does not end.
        """
        deadline = time.monotonic() + timeout
        rest, open_input, said, size = memoryview(stdin), True, [], 0
        while True:
            if not rest and open_input:
                self.close_input()
                open_input = False
            found = self._take_pending()
            said.append(found)
            size += len(found)
            if size > MAX_ANSWER_BYTES:
                raise LaunchError("agent-silent", "The agent in the workspace does not stop.")
            if self._ended:
                break
            until = deadline
            if cancelled is not None:
                until = min(deadline, time.monotonic() + GIVEN_UP_SECONDS)
            ready = self._wait(select.POLLIN | (select.POLLOUT if rest else 0), until)
            if time.monotonic() >= deadline or (cancelled is not None and cancelled()):
                return None
            if not ready:
                continue
            if ready & ~select.POLLOUT:
                self._receive()
            if rest and ready & select.POLLOUT:
                try:
                    rest = rest[self._send(rest) :]
                except LaunchError:  # it does not want more; its answer may still be there
                    rest = rest[:0]
        code = self.exit_code()
        if code is None:
            raise LaunchError("runtime-not-running", "The workspace's container ended meanwhile.")
        return AgentAnswer(code, b"".join(said), self._said_errors())

    def exit_code(self) -> int | None:
        """Return how it ended; None while it runs, and when that cannot be known any more.

        Once its output has ended, the engine gets a moment to learn of the exit.
        """
        until = time.monotonic() + EXIT_SECONDS
        while self._exit_code is None:
            try:
                running, self._exit_code = self._exit_status()
            except LaunchError:
                return None
            if not running or not self._ended or time.monotonic() > until:
                break
            time.sleep(self.tick_seconds)
        return self._exit_code

    def errors(self) -> str:
        """Return the end of what it said on its standard error, for the log."""
        return self._said_errors().decode("utf-8", "replace")

    def _said_errors(self) -> bytes:
        return self._said.bytes()

    def close(self) -> None:
        """Give the connection up, whatever the other side does; the others' calls end."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # Only when nobody waits for it any more: its number may be another connection's soon.
        with self._reading, self._writing:
            self._socket.close()

    def _wait(self, events: int, deadline: float, wake: int = -1) -> int:
        """Return what the connection is ready for; 0 when that is nothing until the deadline.

        Also 0 when only ``wake`` is readable.
        """
        if self._socket.fileno() < 0:
            return events
        poll = select.poll()
        poll.register(self._socket, events)
        if wake >= 0:
            poll.register(wake, select.POLLIN)
        found = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        return found.get(self._socket.fileno(), 0)


def _lost() -> LaunchError:
    return LaunchError("adapter-unavailable", "The connection to the workspace's agent was lost.")
