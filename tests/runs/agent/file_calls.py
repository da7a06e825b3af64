"""Actions on files as a call does them, with a test in the place of PID 1 and of the caller."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from runs.agent.files.access import AccessLog
from runs.agent.files.files_wire import DATA, END, Wire

Interfere = Callable[[dict[str, Any]], bool | None]


class JoinedLog(AccessLog):
    """The calls' own, over a connection that is there."""

    def __init__(self, connection: socket.socket) -> None:
        self._told = {"by": "usr_test"}
        self._connection = connection


class Recorder:
    """Takes accesses as PID 1 does, and does something of its own before it answers."""

    def __init__(self, connection: socket.socket, interfere: Interfere) -> None:
        self.told: list[dict[str, Any]] = []
        self._connection = connection
        self._interfere = interfere

    def serve(self) -> None:
        """Answer each line, to the end of the connection."""
        with self._connection.makefile("rb") as lines:
            for line in lines:
                self.told.append(json.loads(line))
                taken = self._interfere(self.told[-1]) is not False
                self._connection.sendall(b"+" if taken else b"-")


@contextmanager
def recorded(interfere: Interfere) -> Iterator[tuple[AccessLog, list[dict[str, Any]]]]:
    """Give a log whose accesses somebody answers, and what has been told, whole at the end."""
    ours, theirs = socket.socketpair()
    recorder = Recorder(theirs, interfere)
    thread = threading.Thread(target=recorder.serve)
    with theirs:
        thread.start()
        try:
            with ours:
                yield JoinedLog(ours), recorder.told
        finally:
            thread.join()


@contextmanager
def wire_with(content: bytes | None = None) -> Iterator[Wire]:
    """Give a wire over which a caller has sent all it has to say; nobody needs its answers."""
    source, caller = os.pipe()
    target = os.open(os.devnull, os.O_WRONLY)
    try:
        with os.fdopen(caller, "wb") as sent:
            if content is not None:
                for kind, payload in ((DATA, content), (END, b"")):
                    sent.write(kind + len(payload).to_bytes(4, "big") + payload)
        yield Wire(source, target)
    finally:
        os.close(source)
        os.close(target)
