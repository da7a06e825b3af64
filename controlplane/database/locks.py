"""Locks that every process of the installation sees: PostgreSQL advisory locks.

Session locks, so they may be held while other systems are called, and a process that dies gives
them back with its connection; ``lock_until_commit`` is for one transaction.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.db import DatabaseError, InterfaceError, connection

from controlplane.database.retries import retry_database

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.1
"""How often a held lock is asked for again."""


def _key(name: str) -> int:
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


@contextmanager
def advisory_lock(name: str, *, timeout: float, cancelled: threading.Event) -> Iterator[None]:
    """Hold the lock ``name``; raise ``TimeoutError`` when it is not to be had.

    Waits for up to ``timeout`` seconds, and no longer once ``cancelled`` is set. A database that
    restarts in the meantime is waited for. The lock goes with the connection: who depends on it
    has to verify afterwards what it was to protect.
    """

    _wait_for(name, "SELECT pg_try_advisory_lock(%s)", timeout, cancelled)
    try:
        yield
    finally:
        _unlock(name)


@contextmanager
def shared_advisory_lock(
    name: str, *, timeout: float, cancelled: threading.Event
) -> Iterator[None]:
    """Share the lock ``name`` with others who share it; as :func:`advisory_lock` otherwise."""
    _wait_for(name, "SELECT pg_try_advisory_lock_shared(%s)", timeout, cancelled)
    try:
        yield
    finally:
        _unlock(name, "SELECT pg_advisory_unlock_shared(%s)")


def _wait_for(name: str, statement: str, timeout: float, cancelled: threading.Event) -> None:
    def acquire() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(statement, [_key(name)])
            row = cursor.fetchone()
        return bool(row and row[0])

    deadline = time.monotonic() + timeout
    while not retry_database(acquire, timeout=timeout, cancelled=cancelled):
        if time.monotonic() > deadline or cancelled.wait(LOOK_SECONDS):
            raise TimeoutError(f"the lock {name} is held by another process")


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


def _unlock(name: str, statement: str = "SELECT pg_advisory_unlock(%s)") -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement, [_key(name)])
    except (DatabaseError, InterfaceError):
        # The connection broke, and the lock went with it.
        log.info("advisory_lock_lost", lock=name)


def lock_until_commit(name: str) -> None:
    """Wait for the lock ``name`` and hold it until the surrounding transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_key(name)])
