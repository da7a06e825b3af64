"""From the memory of a process to the table that all processes share, and back out of it."""

from __future__ import annotations

import json
import threading

import structlog
from django.db import (
    DatabaseError,
    InterfaceError,
    close_old_connections,
    connection,
    connections,
    transaction,
)

from controlplane.database.retries import database_trouble
from controlplane.metrics import counting
from controlplane.metrics.counting import Key

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 5.0
WRITE_MS = 2_000
"""Limit of one write: workers write between two heartbeats, which must not wait for a row."""

# In order, so that two processes that add to the same rows never wait for each other in a circle.
_ADD = """
INSERT INTO metric_count AS present (family, labels, part, value)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::double precision[])
    AS counted (family, labels, part, value)
ORDER BY 1, 2, 3
ON CONFLICT (family, labels, part) DO UPDATE SET value = present.value + excluded.value"""
_READ = "SELECT family, labels, part, value FROM metric_count ORDER BY 1, 2, 3"


def flush() -> None:
    """Add what this process has counted to the table, in one statement of a limited time.

    Raises the database's error when that fails; then everything is still there for the next time.
    A commit whose answer was lost is counted twice.
    """
    taken = counting.take()
    if not taken:
        return
    families, labels, parts = zip(*taken, strict=True)
    encoded = [json.dumps(values) for values in labels]
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {WRITE_MS}")
            cursor.execute(_ADD, [list(families), encoded, list(parts), list(taken.values())])
    except BaseException:
        counting.give_back(taken)
        raise


def try_flush() -> None:
    """Add what was counted to the table; what fails is tried again the next time."""
    try:
        flush()
    except (DatabaseError, InterfaceError) as exc:
        log.warning("counts_not_written", reason=database_trouble(exc))
        close_old_connections()


def stored() -> dict[Key, float]:
    """Return what all processes have written."""
    with connection.cursor() as cursor:
        cursor.execute(_READ)
        rows = cursor.fetchall()
    return {
        (family, tuple(json.loads(labels)), part): value for family, labels, part, value in rows
    }


class Flusher:
    """Writes the counts of a process that has no heartbeat to do it: one of the API's."""

    def __init__(self, seconds: float = FLUSH_SECONDS) -> None:
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counts", daemon=True)

    def start(self) -> None:
        """Write every few seconds from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Write a last time."""
        self._stopped.set()
        self._thread.join(self._seconds)

    def _run(self) -> None:
        while True:
            last = self._stopped.wait(self._seconds)
            if counting.pending():
                try_flush()
                # An API that nobody asks anything keeps no connection for this.
                connections.close_all()
            if last:
                return
