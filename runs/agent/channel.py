"""The framed channel of a session: u8 type, u32 length (big endian), payload, both ways."""

from __future__ import annotations

import os
import struct
from typing import Iterator, List, NamedTuple

HEADER = struct.Struct("!BI")
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
_READ_BYTES = 65536


class FromClient:
    """Types of the frames that a client sends."""

    SPEC = 0
    DATA = 1
    EOF = 2
    RESIZE = 3
    SIGNAL = 4
    DETACH = 5


class ToClient:
    """Types of the frames that it gets."""

    READY = 16
    STDOUT = 17
    STDERR = 18
    EXIT = 19
    ERROR = 20


class ChannelError(Exception):
    """The client does not speak this protocol; the message says what was wrong."""


class Frame(NamedTuple):
    """One message of the channel."""

    type: int
    payload: bytes


class FrameReader:
    """Takes bytes as they come, gives whole frames."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        self._buffer = bytearray()

    def read(self) -> bool:
        """Read once, and say whether something came; at the end of the channel `ended` is set."""
        try:
            part = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        if not part:
            self.ended = True
        self._buffer += part
        return bool(part)

    def frames(self) -> Iterator[Frame]:
        """The whole frames that have arrived. Raises ChannelError for a length that none has."""
        while len(self._buffer) >= HEADER.size:
            kind, length = HEADER.unpack_from(self._buffer)
            if length > MAX_PAYLOAD_BYTES:
                raise ChannelError(f"a frame of {length} bytes; {MAX_PAYLOAD_BYTES} are allowed")
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            yield Frame(kind, payload)


class FrameWriter:
    """Sends frames without ever blocking; what the client does not take yet is kept."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken = False
        self.pending = 0
        self._parts: List[bytes] = []

    def send(self, kind: int, payload: bytes) -> None:
        """Append a frame and send what can be sent."""
        if self.broken:
            return
        self._parts.append(HEADER.pack(kind, len(payload)) + payload)
        self.pending += HEADER.size + len(payload)
        self.flush()

    def flush(self) -> None:
        """Send what the client takes now."""
        while self._parts:
            part = self._parts[0]
            try:
                written = os.write(self.fd, part)
            except BlockingIOError:
                return
            except OSError:
                self.give_up()
                return
            self.pending -= written
            if written == len(part):
                del self._parts[0]
            else:
                self._parts[0] = part[written:]

    def give_up(self) -> None:
        """Nobody reads any longer."""
        self.broken = True
        self.pending = 0
        self._parts.clear()
