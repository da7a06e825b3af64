"""Many readers of streams in one loop, which lose their connections, and a check of what they saw.

Events of a record are numbered without a gap, so a reader's history is right when each number is
one above the last, from 1 to the record's last, across all of its connections, and the end follows.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from random import Random

from tests.support.waiting import LONG_WAIT

_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)
_SOME_BYTES = (1_000, 7_000, 65_536)


class Reader:
    """One reader of one stream; closes its connection behind each of the events ``drops``."""

    def __init__(self, port: int, path: str, drops: Iterable[int], random: Random) -> None:
        self.last = 0
        self.ended = False
        self.dropped = 0
        self.faults: list[str] = []
        self.socket: socket.socket
        self._port = port
        self._path = path
        self._drops = sorted(drops)
        self._random = random
        self._buffer = b""
        self._head = False

    def connect(self) -> None:
        """Begin, or go on behind the last event that came whole."""
        self.socket = socket.create_connection(("127.0.0.1", self._port), timeout=LONG_WAIT)
        header = f"Last-Event-ID: {self.last}\r\n" if self.last else ""
        asked = f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"
        self.socket.sendall(asked.encode())
        self.socket.setblocking(False)
        self._buffer, self._head = b"", False

    def receive(self) -> bool:
        """Take what came; tell whether the connection is still of use."""
        try:
            data = self.socket.recv(self._random.choice(_SOME_BYTES))
        except BlockingIOError:
            return True
        if not data:
            if not self.ended:
                self.faults.append(f"closed behind {self.last}")
            return False
        self._buffer += data
        if not self._head and not self._take_head():
            return True
        self._check()
        if self._drops and self.last >= self._drops[0]:
            self._drops = [place for place in self._drops if place > self.last]
            self.dropped += 1
            return False
        return not self.faults

    def _take_head(self) -> bool:
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if separator:
            self._head, self._buffer = True, rest
            if b" 200 " not in head[:20]:
                self.faults.append(head[:200].decode())
        return self._head

    def _check(self) -> None:
        whole, separator, rest = self._buffer.rpartition(b"\n\n")
        if not separator:
            return
        self._buffer = rest
        for number in map(int, _ID.findall(whole)):
            if number != self.last + 1:
                self.faults.append(f"{number} behind {self.last}")
            self.last = number
        self.ended = self.ended or b"\nevent: end\n" in whole


def follow_all(readers: Sequence[Reader], write: Callable[[], bool], *, seconds: float) -> int:
    """Have all read to the end while ``write`` writes on, until it returns False.

    Return how many connections were dropped. Raises ``AssertionError`` for a history that is wrong.
    """
    deadline = time.monotonic() + seconds
    going = set(readers)
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            reader.connect()
            selector.register(reader.socket, selectors.EVENT_READ, reader)
        writing = True
        while going:
            assert time.monotonic() < deadline, f"{len(going)} readers have not come to the end"
            writing = writing and write()
            for key, _ in selector.select(0 if writing else 1):
                reader = key.data
                if reader.receive():
                    continue
                selector.unregister(reader.socket)
                reader.socket.close()
                assert not reader.faults, reader.faults
                if reader.ended:
                    going.discard(reader)
                else:
                    reader.connect()
                    selector.register(reader.socket, selectors.EVENT_READ, reader)
    return sum(reader.dropped for reader in readers)
