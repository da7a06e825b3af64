"""How many connections to the database the recorders of a worker have at once.

A recorder keeps its connection from one batch to the next while its run is busy. PostgreSQL takes
100 connections unless told otherwise, and a worker may have hundreds of recorders. So a recorder
needs a turn to be connected, and gives connection and turn back when it is idle, or as soon as its
batch is stored when another one waits.

To connect takes longer than to store a short record: a few connections of recorders that are done
are kept for those that come.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from django.db import (
    DEFAULT_DB_ALIAS,
    InterfaceError,
    OperationalError,
    connection,
    connections,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from controlplane.database.retries import retry_database

T = TypeVar("T")

LOOK_SECONDS = 0.5
"""How often who waits looks whether it is to give up."""
FRESH_SECONDS = 1.0
"""A kept connection is asked whether it is alive, unless it was used so short a time ago and the
database has not spoken since, as it does before it goes away."""


class StoppedError(Exception):
    """The worker gives the run up: its lease is lost, or the worker is told to stop."""


class Connections:
    """Turns to be connected, in the order in which they were asked for.

    At most ``kept`` connections are kept for others; :meth:`close` closes them.
    """

    def __init__(self, limit: int, *, kept: int = 0) -> None:
        self._free = limit
        self._room = kept
        self._kept: list[tuple[BaseDatabaseWrapper, float]] = []
        self._lock = threading.Lock()
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

    def keep(self) -> None:
        """Keep this thread's connection for another one, where there is room; it has none then."""
        made = connections[DEFAULT_DB_ALIAS]
        if made.connection is None or made.in_atomic_block or made.errors_occurred:
            return
        with self._lock:
            if len(self._kept) < self._room:
                made.inc_thread_sharing()
                self._kept.append((made, time.monotonic()))
                del connections[DEFAULT_DB_ALIAS]

    def adopt(self) -> None:
        """Have this thread use a connection that was kept, if there is one."""
        with self._lock:
            kept, kept_at = self._kept.pop() if self._kept else (None, 0.0)
        if kept is None:
            return
        is_fresh = time.monotonic() - kept_at < FRESH_SECONDS and _is_silent(kept)
        if not is_fresh and not kept.is_usable():  # the database was away meanwhile
            kept.close()
            return
        connection.close()
        connections[DEFAULT_DB_ALIAS] = kept

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let a thread that needs the database for a moment use what is kept, and keep it again."""
        self.adopt()
        try:
            yield
        finally:
            self.keep()
            connections.close_all()

    def close(self) -> None:
        """Close what is kept."""
        with self._lock:
            kept, self._kept = self._kept, []
        for each, _ in kept:
            each.close()

    def give_back(self) -> None:
        """End a turn; whoever waits longest has the next one."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


def _is_silent(kept: BaseDatabaseWrapper) -> bool:
    """Whether nothing has come over a connection that nobody uses, its end included."""
    poll = select.poll()
    try:
        poll.register(kept.connection.fileno(), select.POLLIN)
    except (psycopg.Error, OSError, ValueError):
        return False  # the driver has noticed already that it is closed
    return not poll.poll(0)


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
