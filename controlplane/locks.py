"""Locks that every process of the installation sees: PostgreSQL advisory locks.

Session locks, so they may be held while other systems are called, and a process that dies gives
them back with its connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.db import DatabaseError, connection

log = structlog.get_logger(__name__)


def _key(name: str) -> int:
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


@contextmanager
def advisory_lock(name: str) -> Iterator[None]:
    """Hold the lock ``name``; waits for as long as somebody else holds it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [_key(name)])
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
    except DatabaseError:
        # The connection broke, and the lock went with it.
        log.info("advisory_lock_lost", lock=name)
