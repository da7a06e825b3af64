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
from typing import Callable, Optional

from .recording import RecordedStream

_READ_BYTES = 65536
_TERMINAL_READ_BYTES = 8192
_BATCH_BYTES = 65536
_HANGUP_RETRY_SECONDS = 0.05


class OutputPipe:
    """Reads what a program writes. `copy` is also given every byte.

    `reopens`: whether a hangup may be followed by more, as on a terminal that nobody has open at
    this moment but whose leader is alive.
    """

    def __init__(
        self,
        fd: int,
        stream: RecordedStream,
        copy: Optional[Callable[[bytes], None]] = None,
        reopens: Optional[Callable[[], bool]] = None,
    ) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.closed = False
        self.retry_at: Optional[float] = None
        self._stream = stream
        self._copy = copy
        self._reopens = reopens
        # A terminal hands over a page at a time: room for more would be made and thrown away.
        self._read_bytes = _READ_BYTES if reopens is None else _TERMINAL_READ_BYTES

    def ready(self, now: float) -> bool:
        """Whether it makes sense to wait for output: not directly after a hangup."""
        if self.retry_at is not None and now >= self.retry_at:
            self.retry_at = None
        return not self.closed and self.retry_at is None

    def flush(self) -> None:
        """Write to the record what has been read so far."""
        self._stream.flush()

    def read(self) -> None:
        """Take what is there now, up to a limit; at the end close the stream."""
        fd, read_bytes = self.fd, self._read_bytes
        parts = []
        size = 0
        ended = False
        try:
            while size < _BATCH_BYTES:
                part = os.read(fd, read_bytes)
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
        if size:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._stream.feed(data)
            if self._copy is not None:
                self._copy(data)
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

    `visible` says before each write whether the bytes may be recorded or only counted.
    """

    def __init__(
        self,
        fd: int,
        stream: RecordedStream,
        visible: Callable[[], bool],
    ) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.closed = False
        self._stream = stream
        self._visible = visible
        self._pending = bytearray()
        self._ended = False

    @property
    def pending(self) -> int:
        """How many bytes the program has not taken yet."""
        return len(self._pending)

    def give(self, data: bytes) -> None:
        """Append bytes; ignored when the input has ended."""
        if not self.closed and not self._ended:
            self._pending += data

    def end(self) -> None:
        """After what has been given comes the end."""
        self._ended = True
        if not self._pending:
            self.close("eof")

    def write(self) -> None:
        """Hand over what the program takes now."""
        while self._pending:
            visible = self._visible()
            with memoryview(self._pending) as view:
                piece = bytes(view[:_READ_BYTES])
            try:
                written = os.write(self.fd, piece)
            except BlockingIOError:
                return
            except OSError:
                self.close("abandoned")
                return
            if visible:
                self._stream.feed(piece[:written])
            else:
                self._stream.hide(written)
            del self._pending[:written]
            if written < len(piece):
                return
        if self._ended:
            self.close("eof")

    def close(self, reason: str) -> None:
        """Hand over no more; what was not taken is not part of the record."""
        if self.closed:
            return
        self.closed = True
        self._pending.clear()
        os.close(self.fd)
        self._stream.close(reason)
