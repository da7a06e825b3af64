"""Waiting out a database that restarts, and saying what is wrong with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from django.db import InterfaceError, OperationalError, close_old_connections

log = structlog.get_logger(__name__)

T = TypeVar("T")

DATABASE_RETRY_SECONDS = 300.0
"""How long work that is done waits for the database before its result is given up."""


def database_trouble(exc: Exception) -> str:
    """Return what is wrong with the database, for a log.

    A connection that fails says why: a password, a name, a machine that is away. A statement that
    fails may repeat the values that it was called with, so that only its kind is told, and what
    the driver calls the database's code for it, such as ``DiskFull``.
    """
    kind, told = type(exc).__name__, str(exc).partition("\n")[0]
    if told.startswith("connection "):
        return f"{kind}: {told}"
    of_the_driver = type(exc.__cause__).__name__
    return f"{kind}: {of_the_driver}" if exc.__cause__ and of_the_driver != kind else kind


def retry_database(
    write: Callable[[], T], *, timeout: float, cancelled: threading.Event | None = None
) -> T:
    """Return ``write()``, repeating it for up to ``timeout`` seconds while the database is away.

    ``write`` runs its own transaction, so a repetition starts from nothing. Raises the database's
    error when the time is over or ``cancelled`` is set.
    """
    deadline = time.monotonic() + timeout
    pause = 0.1
    while True:
        try:
            return write()
        except (OperationalError, InterfaceError) as exc:
            close_old_connections()
            if time.monotonic() + pause > deadline or (cancelled and cancelled.is_set()):
                raise
            log.warning("database_away", reason=database_trouble(exc), retry_in_s=pause)
            time.sleep(pause)
            pause = min(pause * 2, 2.0)
