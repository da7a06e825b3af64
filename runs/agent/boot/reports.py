"""Connections over which calls report what they are about to do, for the record that PID 1 writes.

A call greets while it is root and reports later, as the workspace's user: one line of JSON each,
answered by `+` once it is recorded, and by `-` when it is not.
"""

from __future__ import annotations

import json
import socket
from typing import Any, Callable, Dict, List

GREETING = b'{"reports": true}\n'

_MOST_BYTES = 64 * 1024
_READ_BYTES = 65536

Record = Callable[[Dict[str, Any]], bool]


class Reports:
    """The connections that have greeted."""

    def __init__(self) -> None:
        self._connections: Dict[int, socket.socket] = {}
        self._begun: Dict[int, bytes] = {}

    def take(self, connection: socket.socket) -> None:
        """Answer a greeting; from now on the connection is served here, unless it has gone."""
        try:
            connection.send(b"+")
        except OSError:
            connection.close()
            return
        self._connections[connection.fileno()] = connection
        self._begun[connection.fileno()] = b""

    def fds(self) -> List[int]:
        """What to wait for."""
        return list(self._connections)

    def ready(self, fd: int, record: Record) -> None:
        """Read what has come, and record what is whole; what makes no sense ends the connection."""
        connection = self._connections[fd]
        try:
            found = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            found = b""
        line, end, rest = (self._begun[fd] + found).partition(b"\n")
        if not found or rest or len(line) > _MOST_BYTES:
            self._close(fd)
        elif not end:
            self._begun[fd] = line
        else:
            self._begun[fd] = b""
            self._answer(fd, line, record)

    def _answer(self, fd: int, line: bytes, record: Record) -> None:
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            self._close(fd)
            return
        answer = b"+" if record(told) else b"-"
        try:
            self._connections[fd].send(answer)
        except OSError:
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._connections.pop(fd).close()
        del self._begun[fd]
