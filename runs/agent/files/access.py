"""What the record of the workspace is told of a call, before the call has any effect.

PID 1 writes the record. It takes accesses on its socket from root alone, so the connection is made
before a call becomes the workspace's user; what PID 1 does not take is not done.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any, Dict

from ..boot.reports import GREETING
from ..record.event_meta import text_of
from ..record.resting import SOCKET_NAME
from .files_wire import Refusal

_SECONDS = 30.0
_PEER = struct.Struct("3i")


class AccessLog:
    """The connection to PID 1. Raises Refusal (`access-not-recorded`) when there is none."""

    def __init__(self, state_directory: str, told: Dict[str, Any]) -> None:
        self._told = told
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(_SECONDS)
        try:
            self._connection.connect(os.path.join(state_directory, SOCKET_NAME))
            peer = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if _PEER.unpack(peer)[0] != 1:
                raise ConnectionError("the listener is not the workspace's first process")
            self._connection.sendall(GREETING)
            if self._connection.recv(1) != b"+":
                raise ConnectionError("it takes no accesses")
        except OSError:
            raise _not_recorded() from None

    def tell(self, action: str, path: bytes, **members: Any) -> None:
        """Record one access; raises Refusal when that cannot be done.

        Of a change the event is durable when this returns.
        """
        if not self.report({"action": action, "path": text_of(path), **members}):
            raise _not_recorded()

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone, so that nothing can be recorded over it any more."""
        return self._connection.fileno() < 0

    def report(self, told: Dict[str, Any]) -> bool:
        """Record an event of the call's own; False when that cannot be done."""
        line = json.dumps({**told, **self._told}).encode("ascii") + b"\n"
        try:
            self._connection.sendall(line)
            answer = self._connection.recv(1)
        except OSError:
            answer = b""
        if answer not in (b"+", b"-"):
            # An answer that comes later would be taken for that to another line.
            self._connection.close()
        return answer == b"+"


def _not_recorded() -> Refusal:
    return Refusal(
        "access-not-recorded",
        "The workspace's record cannot take more at the moment, and nothing is done unrecorded.",
    )
