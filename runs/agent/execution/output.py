"""Output of user processes: from their pipes to the record and, live, to the container's stdout.

Memory is bounded: when the container's stdout is slow, pipes are not read, and the programs wait
as they would on any full pipe. When nobody reads the container's stdout any more, output is
dropped and programs go on.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from typing import List, Optional

from ..record.recording import RecordedStream
from ..record.tail import Tail

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
    """The read end of one stream of a process: for the record, for the log and for the tail.

    It outlives the process: what a step has left in the background keeps its pipe, and would be
    killed by writing into one that nobody reads.
    """

    def __init__(
        self,
        fd: int,
        output: ContainerOutput,
        tail: Tail,
        stream: RecordedStream,
        *,
        masked: bool = False,
    ) -> None:
        self.fd = fd
        self._output: Optional[ContainerOutput] = output
        if masked:
            self._output, stream.show = None, output.write
        self._tail: Optional[Tail] = tail
        self._stream = stream
        self.closed = False

    def read(self) -> None:
        """Pass on one chunk; at the end of the pipe close it."""
        self._pass_on(os.read(self.fd, _READ_BYTES))

    def drain(self) -> None:
        """Pass on what lies in the pipe now: a child that goes on writing cannot hold this up."""
        left = self._available()
        while left > 0 and not self.closed:
            chunk = os.read(self.fd, min(left, _READ_BYTES))
            left -= len(chunk)
            self._pass_on(chunk)
        if not self.closed and self._has_ended():
            self._end("eof")

    def forget_tail(self) -> None:
        """The leader has ended: what comes now is the background's."""
        self._tail = None

    def abandon(self) -> None:
        """Read no more, although somebody may still write."""
        if not self.closed:
            self._end("abandoned")

    def _available(self) -> int:
        if self.closed:
            return 0
        answer = fcntl.ioctl(self.fd, termios.FIONREAD, b"\0" * 4)
        return int(struct.unpack("i", answer)[0])

    def _has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return [events for _, events in poll.poll(0)] == [select.POLLHUP]

    def _end(self, reason: str) -> None:
        os.close(self.fd)
        self.closed = True
        self._stream.close(reason)

    def _pass_on(self, chunk: bytes) -> None:
        if not chunk:
            self._end("eof")
            return
        self._stream.feed(chunk)
        if self._output is not None:
            self._output.write(chunk)
        if self._tail is not None:
            self._tail.feed(chunk)
