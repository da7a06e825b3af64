"""Connections to the database that threads which come and go leave to each other.

To connect takes longer than most of what such a thread asks for.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

FRESH_SECONDS = 1.0
"""A kept connection is asked whether it is alive, unless it was used so short a time ago and the
database has not spoken since, as it does before it goes away."""


class IdleConnections:
    """At most ``room`` connections that no thread has; :meth:`close` closes them."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._kept: list[tuple[BaseDatabaseWrapper, float]] = []
        self._lock = threading.Lock()

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
        """Have this thread use a connection that was kept, if there is one and it has none."""
        if connection.connection is not None:
            return
        with self._lock:
            kept, kept_at = self._kept.pop() if self._kept else (None, 0.0)
        if kept is None:
            return
        is_fresh = time.monotonic() - kept_at < FRESH_SECONDS and _is_silent(kept)
        if not is_fresh and not kept.is_usable():  # the database was away meanwhile
            kept.close()
            return
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


def _is_silent(kept: BaseDatabaseWrapper) -> bool:
    """Whether nothing has come over a connection that nobody uses, its end included."""
    poll = select.poll()
    try:
        poll.register(kept.connection.fileno(), select.POLLIN)
    except (psycopg.Error, OSError, ValueError):
        return False  # the driver has noticed already that it is closed
    return not poll.poll(0)
