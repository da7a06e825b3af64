"""The frames of a session: u8 type, u32 channel, u32 length (big endian), payload, both ways.

Channel 0 is the connection; the client numbers the others from 1 up. The gateway imports this
module too, so that both ends speak the same bytes.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from typing import Deque, List, NamedTuple, Optional, Union

from ..process.pipe_size import USUAL_BYTES, widen

HEADER = struct.Struct("!BII")
WINDOW = struct.Struct("!I")
INITIAL_WINDOW = 2 * 1024 * 1024
"""How many bytes each side of a channel may send before it is granted more."""
GRANT_BYTES = INITIAL_WINDOW // 4
"""How much must have been consumed before a window is granted."""
MAX_DATA = 256 * 1024
"""A frame of data carries at most so much."""
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024

_READ_BYTES = 256 * 1024
_GATHERED_BUFFERS = 64
_COPIED_BYTES = 1024


class FromClient:
    """Types of the frames that a client sends."""

    SPEC = 0
    DATA = 1
    EOF = 2
    RESIZE = 3
    SIGNAL = 4
    DETACH = 5
    OPEN = 6
    WINDOW = 7
    CLOSE = 8


class ToClient:
    """Types of the frames that it gets."""

    READY = 16
    STDOUT = 17
    STDERR = 18
    EXIT = 19
    ERROR = 20
    OPENED = 21
    EOF = 22
    REFUSED = 23
    WINDOW = 24


class ChannelError(Exception):
    """The other side does not speak this protocol; the message says what was wrong."""


class Frame(NamedTuple):
    """One message."""

    type: int
    channel: int
    payload: bytes


def encode_frame(kind: int, channel: int, payload: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return HEADER.pack(kind, channel, len(payload)) + payload


class FrameDecoder:
    """Takes bytes as they come, gives whole frames."""

    def __init__(self) -> None:
        self._buffer = b""
        self._start = 0
        self._later: List[bytes] = []
        self._size = 0
        self._wanted = HEADER.size

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._later.append(data)
        self._size += len(data)

    def take(self) -> Optional[Frame]:
        """The next whole frame, None when it has not arrived yet.

        Raises ChannelError for a length that no frame has.
        """
        if self._size < self._wanted:
            return None
        if len(self._buffer) - self._start < self._wanted:
            self._join()
        kind, channel, length = HEADER.unpack_from(self._buffer, self._start)
        if length > MAX_PAYLOAD_BYTES:
            raise ChannelError(f"a frame of {length} bytes; {MAX_PAYLOAD_BYTES} are allowed")
        whole = HEADER.size + length
        if self._size < whole:
            self._wanted = whole
            return None
        if len(self._buffer) - self._start < whole:
            self._join()
        end = self._start + whole
        payload = self._buffer[self._start + HEADER.size : end]
        self._start = end
        self._size -= whole
        self._wanted = HEADER.size
        return Frame(kind, channel, payload)

    def _join(self) -> None:
        """Make one buffer of what is left; happens once or twice per frame, never per read."""
        with memoryview(self._buffer) as view, view[self._start :] as left:
            self._buffer = b"".join([left, *self._later])
        self._start = 0
        self._later = []


class FrameReader:
    """Frames from a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        self._decoder = FrameDecoder()
        self._widened = False

    def read(self) -> bool:
        """Read once, and say whether something came; at the end of the stream `ended` is set."""
        try:
            part = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        if not part:
            self.ended = True
            return False
        if len(part) == USUAL_BYTES and not self._widened:
            self._widened = True
            widen(self.fd)
        self._decoder.feed(part)
        return True

    def take(self) -> Optional[Frame]:
        """As FrameDecoder.take."""
        return self._decoder.take()


class FrameWriter:
    """Sends frames without ever blocking; what the client does not take yet is kept."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken = False
        self.pending = 0
        self._widened = False
        self._parts: Deque[Union[bytes, memoryview]] = deque()

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Append a frame; `flush` sends it."""
        if self.broken:
            return
        header = HEADER.pack(kind, channel, len(payload))
        if len(payload) <= _COPIED_BYTES:
            self._parts.append(header + payload)
        else:
            self._parts.append(header)
            self._parts.append(payload)
        self.pending += len(header) + len(payload)

    def flush(self) -> None:
        """Send what the client takes now."""
        parts = self._parts
        while parts:
            gathered = [parts[index] for index in range(min(len(parts), _GATHERED_BUFFERS))]
            try:
                written = os.writev(self.fd, gathered)
            except BlockingIOError:
                return
            except OSError:
                self.give_up()
                return
            if written == USUAL_BYTES and not self._widened:
                self._widened = True
                widen(self.fd)
            self.pending -= written
            while written:
                part = parts[0]
                if written < len(part):
                    parts[0] = memoryview(part)[written:]
                    break
                written -= len(part)
                parts.popleft()

    def give_up(self) -> None:
        """Nobody reads any longer."""
        self.broken = True
        self.pending = 0
        self._parts.clear()
