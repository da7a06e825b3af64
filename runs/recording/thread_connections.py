"""How many connections to the database the recorders of a worker have at once.

A recorder keeps its connection from one batch to the next while its run is busy. PostgreSQL takes
100 connections unless told otherwise, and a worker may have hundreds of recorders. So a recorder
needs a turn to be connected, and gives connection and turn back when it is idle, or as soon as its
batch is stored when another one waits.

To connect takes longer than to store a short record: a few connections of recorders that are done
or idle are kept for those that come.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connection

from controlplane.database.idle_connections import IdleConnections
from controlplane.database.retries import retry_database

T = TypeVar("T")

LOOK_SECONDS = 0.5
"""How often who waits looks whether it is to give up."""


class StoppedError(Exception):
    """The worker gives the run up: its lease is lost, or the worker is told to stop."""


class Connections(IdleConnections):
    """Turns to be connected, in the order in which they were asked for.

    At most ``kept`` connections are kept for others.
    """

    def __init__(self, limit: int, *, kept: int = 0) -> None:
        super().__init__(kept)
        self._free = limit
        self._waiting: deque[threading.Event] = deque()

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a turn."""
        return bool(self._waiting)

    def take(self, cancelled: threading.Event) -> bool:
        """Wait for a turn; False when ``cancelled`` was set before there was one."""
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return True
            turn = threading.Event()
            self._waiting.append(turn)
        while not turn.wait(LOOK_SECONDS):
            if cancelled.is_set():
                with self._lock:
                    if not turn.is_set():
                        self._waiting.remove(turn)
                        return False
        return True

    def give_back(self) -> None:
        """End a turn; whoever waits longest has the next one."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class Database:
    """The database as the thread of one recorder uses it; called with what is to be done."""

    def __init__(self, connections: Connections, stopped: threading.Event) -> None:
        self._connections = connections
        self._stopped = stopped
        self._has_turn = False

    def __call__(self, work: Callable[[], T]) -> T:
        """Return ``work()``, however long the database is away; raise ``StoppedError`` if told."""
        if not self._has_turn:
            self._has_turn = self._connections.take(self._stopped)
            if not self._has_turn:
                raise StoppedError
            self._connections.adopt()
        try:
            return retry_database(work, timeout=float("inf"), cancelled=self._stopped)
        except (OperationalError, InterfaceError) as exc:
            raise StoppedError from exc
        finally:
            if self._connections.wanted:
                self.leave()

    def leave(self, *, keep: bool = False) -> None:
        """Give the connection back; it is made again when it is needed.

        ``keep``: leave it to another recorder.
        """
        if keep and self._has_turn and not self._connections.wanted:
            self._connections.keep()
        connection.close()
        if self._has_turn:
            self._has_turn = False
            self._connections.give_back()
