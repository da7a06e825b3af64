"""Output of user processes: from their pipes to the container's stdout, byte for byte and live.

Memory is bounded: when the container's stdout is slow, pipes are not read, and the programs wait
as they would on any full pipe. When nobody reads the container's stdout any more, output is
dropped and programs go on.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import List, Optional, Sequence

from .tail import Tail

_READ_BYTES = 65536
_PENDING_BYTES = 262144


class ContainerOutput:
    """The container's stdout, written without ever blocking the loop."""

    def __init__(self, descriptor: int) -> None:
        self.fd = _reopened_without_blocking(descriptor)
        self._pending: List[bytes] = []
        self._pending_bytes = 0
        self._broken = False

    @property
    def has_pending(self) -> bool:
        """Whether something waits for the reader."""
        return bool(self._pending)

    @property
    def accepts(self) -> bool:
        """Whether more may be read from the pipes."""
        return self._pending_bytes < _PENDING_BYTES

    def write(self, chunk: bytes) -> None:
        """Write now what can be written, keep the rest."""
        if self._broken:
            return
        self._pending.append(chunk)
        self._pending_bytes += len(chunk)
        self.flush()

    def flush(self) -> None:
        """Write what can be written without waiting."""
        while self._pending:
            chunk = self._pending[0]
            try:
                written = os.write(self.fd, chunk)
            except BlockingIOError:
                return
            except OSError:
                self._broken = True
                self._pending.clear()
                self._pending_bytes = 0
                return
            self._pending_bytes -= written
            if written == len(chunk):
                self._pending.pop(0)
            else:
                self._pending[0] = chunk[written:]


def _reopened_without_blocking(descriptor: int) -> int:
    """A second, non-blocking opening of the same pipe.

    The flag belongs to the opening, and the first one may be shared with programs that do not
    expect it.
    """
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        duplicate = os.dup(descriptor)
    # A socket, or a pipe that belongs to a user outside of our user namespace. In a container there
    # is nobody else to share the first opening with.
    if os.getpid() == 1:
        os.set_blocking(duplicate, False)
    return duplicate


class Capture:
    """The read end of one process's pipe for stdout and stderr together.

    It outlives the process: what a step has left in the background keeps its pipe, and would be
    killed by writing into one that nobody reads.
    """

    def __init__(self, output: ContainerOutput, tail_bytes: int, secrets: Sequence[bytes]) -> None:
        self.fd, self.write_fd = os.pipe()
        self._output = output
        self._tail: Optional[Tail] = Tail(tail_bytes, secrets)
        self.closed = False

    def started(self) -> None:
        """The process has the write end now; without ours the pipe can come to its end."""
        os.close(self.write_fd)

    def read(self) -> None:
        """Pass on one chunk; at the end of the pipe close it."""
        self._pass_on(os.read(self.fd, _READ_BYTES))

    def finish(self) -> str:
        """After the leader's exit: pass on what it has written, return the tail, keep no more.

        Reads exactly what lies in the pipe now, so a child that goes on writing cannot hold this
        up.
        """
        left = self._available()
        while left > 0 and not self.closed:
            chunk = os.read(self.fd, min(left, _READ_BYTES))
            left -= len(chunk)
            self._pass_on(chunk)
        text = self._tail.text() if self._tail else ""
        self._tail = None
        return text

    def close(self) -> None:
        """Give the pipe up."""
        if not self.closed:
            os.close(self.fd)
            self.closed = True

    def _available(self) -> int:
        if self.closed:
            return 0
        answer = fcntl.ioctl(self.fd, termios.FIONREAD, b"\0" * 4)
        return int(struct.unpack("i", answer)[0])

    def _pass_on(self, chunk: bytes) -> None:
        if not chunk:
            self.close()
            return
        self._output.write(chunk)
        if self._tail is not None:
            self._tail.feed(chunk)
