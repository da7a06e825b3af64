"""Both ends of what a program reads and writes: recorded, never blocking the loop.

The same classes serve pipes and the master side of a terminal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
import time
from typing import Callable, Optional, Protocol

from ..process.byte_queue import ByteQueue
from ..process.pipe_size import widen
from ..record.recording import RecordedStream

_TERMINAL_READ_BYTES = 8192
# More at once would be slower: it falls out of the processor's cache on the way into the record.
_BATCH_BYTES = 65536
_HANGUP_RETRY_SECONDS = 0.05


class Sink(Protocol):
    """Who is given a copy of what a program writes."""

    def room(self) -> int:
        """How many bytes it takes now; more is not read for it."""

    def take(self, data: bytes) -> None:
        """The next bytes. At the program's end they may be more than there was room for."""


class OutputPipe:
    """Reads what a program writes. `sink` is also given every byte.

    `reopens`: whether a hangup may be followed by more, as on a terminal that nobody has open at
    this moment but whose leader is alive.
    """

    def __init__(
        self,
        fd: int,
        stream: RecordedStream,
        sink: Optional[Sink] = None,
        reopens: Optional[Callable[[], bool]] = None,
    ) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.closed = False
        self.retry_at: Optional[float] = None
        self._stream = stream
        self._sink = sink
        self._reopens = reopens
        # A terminal hands over a page at a time: room for more would be made and thrown away.
        self._read_bytes = _BATCH_BYTES if reopens is None else _TERMINAL_READ_BYTES
        self._widened = reopens is not None

    def ready(self, now: float) -> bool:
        """Whether it makes sense to wait for output: there is room, and no hangup just before."""
        if self.retry_at is not None and now >= self.retry_at:
            self.retry_at = None
        if self.closed or self.retry_at is not None:
            return False
        return self._sink is None or self._sink.room() > 0

    def handle(self, events: int) -> None:
        """It can be read."""
        limit = _BATCH_BYTES if self._sink is None else min(_BATCH_BYTES, self._sink.room())
        if not self.closed and limit > 0:
            self.read(limit)

    def flush(self) -> None:
        """Write to the record what has been read so far."""
        self._stream.flush()

    def read(self, limit: int = _BATCH_BYTES) -> None:
        """Take what is there now, up to a limit; at the end close the stream."""
        fd, read_bytes = self.fd, self._read_bytes
        parts = []
        size = 0
        ended = False
        try:
            while size < limit:
                part = os.read(fd, min(read_bytes, limit - size))
                if not part:
                    ended = True
                    break
                parts.append(part)
                size += len(part)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            ended = True
        if size == _BATCH_BYTES and not self._widened:
            self._widened = True
            widen(fd)
        if size:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            if self._sink is not None:
                self._sink.take(data)
            self._stream.feed(data)
        elif ended and self._reopens is not None and self._reopens():
            self.retry_at = time.monotonic() + _HANGUP_RETRY_SECONDS
            return
        if ended and not size:
            self.close("eof")

    def read_what_is_there(self) -> None:
        """Read everything that has been written until now, and no more."""
        left = self._available()
        while left > 0 and not self.closed:
            before = self._stream.offset
            self.read()
            if self._stream.offset == before:
                return
            left -= self._stream.offset - before
        if not self.closed:
            self.read()

    def close(self, reason: str) -> None:
        """Read no more."""
        if not self.closed:
            self.closed = True
            os.close(self.fd)
            self._stream.close(reason)

    def _available(self) -> int:
        answer = fcntl.ioctl(self.fd, termios.FIONREAD, b"\0" * 4)
        return int(struct.unpack("i", answer)[0])


class InputPipe:
    """Writes what a program is to read, and records what it has been given.

    `visible` says before each write whether the bytes may be recorded or only counted. `consumed`
    is told how many bytes the program has taken.
    """

    def __init__(
        self,
        fd: int,
        stream: RecordedStream,
        visible: Callable[[], bool],
        consumed: Optional[Callable[[int], None]] = None,
    ) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.closed = False
        self._stream = stream
        self._visible = visible
        self._consumed = consumed
        self._queue = ByteQueue()
        self._ended = False

    @property
    def pending(self) -> int:
        """How many bytes the program has not taken yet."""
        return self._queue.size

    def give(self, data: bytes) -> None:
        """Append bytes; ignored when the input has ended."""
        if not self.closed and not self._ended:
            self._queue.append(data)

    def end(self) -> None:
        """After what has been given comes the end."""
        self._ended = True
        if not self._queue.size:
            self.close("eof")

    def handle(self, events: int) -> None:
        """It can be written."""
        self.write()

    def write(self) -> None:
        """Hand over what the program takes now."""
        while self._queue.size:
            visible = self._visible()
            piece = self._queue.first()
            try:
                written = os.write(self.fd, piece)
            except BlockingIOError:
                return
            except OSError:
                self.close("abandoned")
                return
            if visible:
                self._stream.feed(piece if written == len(piece) else piece[:written])
            else:
                self._stream.hide(written)
            self._queue.drop(written)
            if self._consumed is not None:
                self._consumed(written)
            if written < len(piece):
                return
        if self._ended:
            self.close("eof")

    def close(self, reason: str) -> None:
        """Hand over no more; what was not taken is not part of the record."""
        if self.closed:
            return
        self.closed = True
        self._queue.clear()
        os.close(self.fd)
        self._stream.close(reason)
