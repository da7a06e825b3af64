"""What the record of the workspace is told of a call, before the call has any effect.

Of a change that then fails the record is told a second time, with the code of its failure.
PID 1 writes the record. It takes accesses on its socket from root alone, so the connection is made
before a call becomes the workspace's user; what PID 1 does not take is not done.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from types import TracebackType
from typing import Any, Dict, Optional, Type

from ..boot.reports import GREETING
from ..record.event_meta import text_of
from ..record.resting import SOCKET_NAME
from .files_wire import Refusal, refusal_of

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
        """Record one access; raises Refusal when that cannot be done."""
        if not self.report(_access(action, path, members)):
            raise _not_recorded()

    def change(self, action: str, path: bytes, **members: Any) -> Change:
        """Record a change durably before the block that makes it, and its failure behind it.

        Raises Refusal instead of entering the block when the change cannot be recorded.
        """
        return Change(self, _access(action, path, members))

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


class Change:
    """A change that is made in the block; made by `AccessLog.change`."""

    def __init__(self, log: AccessLog, told: Dict[str, Any]) -> None:
        self._log = log
        self._told = told

    def __enter__(self) -> None:
        try:
            recorded = self._log.report(self._told)
        except BaseException as error:
            # It may have been recorded all the same.
            self.__exit__(type(error), error, None)
            raise
        if not recorded:
            raise _not_recorded()

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if error is not None:
            # That it cannot be told is no reason for the client to hear of something else.
            self._log.report({**self._told, "failed": refusal_of(error).code})


def _access(action: str, path: bytes, members: Dict[str, Any]) -> Dict[str, Any]:
    return {"action": action, "path": text_of(path), **members}


def _not_recorded() -> Refusal:
    return Refusal(
        "access-not-recorded",
        "The workspace's record cannot take more at the moment, and nothing is done unrecorded.",
    )
