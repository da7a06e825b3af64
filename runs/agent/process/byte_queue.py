"""Bytes that wait for somebody to take them."""

from __future__ import annotations

from collections import deque
from typing import Deque, Union

PIECE_BYTES = 65536
"""At most so much is handed over at once."""
_SMALL_BYTES = 4096


class ByteQueue:
    """First in, first out. What comes in little pieces is kept in one: each has its price."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: Deque[Union[bytes, bytearray]] = deque()
        self._taken = 0

    def append(self, data: bytes) -> None:
        """Put bytes at the end."""
        if not data:
            return
        self.size += len(data)
        last = self._pieces[-1] if self._pieces else b""
        if isinstance(last, bytearray) and len(last) + len(data) <= PIECE_BYTES:
            last += data
        else:
            self._pieces.append(bytearray(data) if len(data) < _SMALL_BYTES else data)

    def first(self) -> bytes:
        """The next bytes, which stay; nothing when there are none."""
        if not self._pieces:
            return b""
        return bytes(self._pieces[0][self._taken : self._taken + PIECE_BYTES])

    def drop(self, count: int) -> None:
        """Forget so many of what `first` has given."""
        self.size -= count
        self._taken += count
        if self._taken == len(self._pieces[0]):
            self._pieces.popleft()
            self._taken = 0

    def clear(self) -> None:
        """Forget everything."""
        self.size = self._taken = 0
        self._pieces.clear()
