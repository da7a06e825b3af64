"""Locks that every process of the installation sees: PostgreSQL advisory locks.

Session locks, so they may be held while other systems are called, and a process that dies gives
them back with its connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.db import DatabaseError, InterfaceError, connection

from controlplane.patience import DATABASE_PATIENCE_SECONDS, persistently

log = structlog.get_logger(__name__)


def _key(name: str) -> int:
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


@contextmanager
def advisory_lock(name: str) -> Iterator[None]:
    """Hold the lock ``name``; waits for as long as somebody else holds it.

    The holder's own work is limited in time, so the wait is too. A database that restarts in the
    meantime is waited for.
    """

    def acquire() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [_key(name)])

    persistently(acquire, patience=DATABASE_PATIENCE_SECONDS)
    try:
        yield
    finally:
        _unlock(name)


@contextmanager
def try_advisory_lock(name: str) -> Iterator[bool]:
    """Yield whether the lock ``name`` could be had at once; it is held inside the block."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_key(name)])
        row = cursor.fetchone()
    held = bool(row and row[0])
    try:
        yield held
    finally:
        if held:
            _unlock(name)


def _unlock(name: str) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_key(name)])
    except (DatabaseError, InterfaceError):
        # The connection broke, and the lock went with it.
        log.info("advisory_lock_lost", lock=name)
