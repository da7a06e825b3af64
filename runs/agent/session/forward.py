"""`agent forward`: one TCP connection inside the workspace, bridged to stdin and stdout.

Each direction ends by itself: the end of our stdin half-closes the connection, and the other side
may go on. Memory is bounded: a side that does not take more is not read for.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from typing import Callable, Dict, List

EXIT_NO_CONNECTION = 1
_CONNECT_SECONDS = 10.0
_READ_BYTES = 65536


def forward(host: str, port: int) -> int:
    """Bridge until both directions have ended; 1 when nobody listens there."""
    try:
        connection = socket.create_connection((host, port), _CONNECT_SECONDS)
    except (OSError, OverflowError, UnicodeError) as error:
        print(f"agent: cannot connect to {host}:{port}: {error}", file=sys.stderr)
        return EXIT_NO_CONNECTION
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    for fd in (0, 1):
        os.set_blocking(fd, False)
    remote = connection.fileno()
    inward = _Direction(0, remote, lambda: connection.shutdown(socket.SHUT_WR))
    outward = _Direction(remote, 1, lambda: os.close(1))
    while not outward.done:
        _wait([inward, outward])
        # Nobody is left to answer to.
        if outward.failed:
            break
    connection.close()
    return 0


class _Direction:
    """Moves bytes one way, at most one piece of them in memory."""

    def __init__(self, source: int, target: int, finish: Callable[[], None]) -> None:
        self.source = source
        self.target = target
        self.done = False
        self.failed = False
        self._finish = finish
        self._piece = b""

    @property
    def reading(self) -> bool:
        return not self.done and not self._piece

    @property
    def writing(self) -> bool:
        return not self.done and bool(self._piece)

    def read(self) -> None:
        try:
            self._piece = os.read(self.source, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._piece = b""
        if not self._piece:
            self._end()

    def write(self) -> None:
        try:
            self._piece = self._piece[os.write(self.target, self._piece) :]
        except BlockingIOError:
            return
        except OSError:
            self.failed = True
            self._end()

    def _end(self) -> None:
        self.done = True
        try:
            self._finish()
        except OSError:
            pass


def _wait(directions: List[_Direction]) -> None:
    wanted: Dict[int, int] = {}
    for direction in directions:
        if direction.reading:
            wanted[direction.source] = wanted.get(direction.source, 0) | select.POLLIN
        if direction.writing:
            wanted[direction.target] = wanted.get(direction.target, 0) | select.POLLOUT
    poll = select.poll()
    for fd, events in wanted.items():
        poll.register(fd, events)
    ready = dict(poll.poll())
    for direction in directions:
        if direction.writing and direction.target in ready:
            direction.write()
        elif direction.reading and direction.source in ready:
            direction.read()
