"""Taking a partition out of the log while the others are read and written.

::

    attached → detaching → detached → gone

Each arrow is a step of its own and leaves what can be taken up by another process. Nothing here
runs in a transaction: ``DETACH PARTITION … CONCURRENTLY`` has two of its own.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError, connection

from runs.models import PARTITION_RUNS, Run

LOCK_TIMEOUT_MS = 2000
"""How long each step waits for those who are at the log."""

_LOOK_SECONDS = 0.02
_PREFIX = "run_event_p"
_PARTITIONS = """
    SELECT substr(relname, %s + 1)::bigint,
        CASE WHEN inhrelid IS NULL THEN 'detached' WHEN inhdetachpending THEN 'detaching'
            ELSE 'attached' END
    FROM pg_class LEFT JOIN pg_inherits ON inhrelid = oid
    WHERE relkind = 'r' AND relname ~ ('^' || %s || '[0-9]+$')
        AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'run_event'::regclass)
    ORDER BY 1
"""
_WRITERS = """
    SELECT virtualtransaction FROM pg_locks
    WHERE relation = %s::regclass AND mode = 'RowExclusiveLock' AND pid <> pg_backend_pid()
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class State(enum.StrEnum):
    """How far a partition is on its way out."""

    ATTACHED = "attached"
    DETACHING = "detaching"
    DETACHED = "detached"


def name_of(part: int) -> str:
    """Return the name of the table that holds a partition."""
    return f"{_PREFIX}{part}"


def partitions() -> dict[int, State]:
    """Return every partition that there is, in order."""
    with connection.cursor() as cursor:
        cursor.execute(_PARTITIONS, [len(_PREFIX), _PREFIX])
        return {part: State(state) for part, state in cursor.fetchall()}


def is_past(part: int) -> bool:
    """Return whether all numbers of a partition have been given to runs, or never will be."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM run_number_seq")
        (last,) = cursor.fetchone()
    return bool(last >= (part + 1) * PARTITION_RUNS - 1)


def wait_for_new_runs() -> bool:
    """Wait until every run that has its number can be seen, or is no more; False: took too long.

    Somebody may have drawn a number and not committed yet.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_MS / 1000
    waited_for = _writers_of_runs()
    while waited_for and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        waited_for &= _writers_of_runs()
    return not waited_for


def remove(part: int, state: State) -> bool:
    """Remove a partition with all that it holds; False when somebody is at it for too long.

    Then it may be detached, or be half-way there; it can be removed later from its state then.
    """
    name = name_of(part)
    try:
        with _lock_timeout(), connection.cursor() as cursor:
            if state is State.ATTACHED:
                _make_next()
                cursor.execute(f"ALTER TABLE run_event DETACH PARTITION {name} CONCURRENTLY")
            elif state is State.DETACHING:
                cursor.execute(f"ALTER TABLE run_event DETACH PARTITION {name} FINALIZE")
            cursor.execute(f"DROP TABLE {name}")
    except OperationalError:
        return False
    return True


def _writers_of_runs() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(_WRITERS, [Run._meta.db_table])
        return {transaction for (transaction,) in cursor.fetchall()}


def _make_next() -> None:
    """Make the partition that runs will soon need, since making one waits for a removal."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT run_event_ensure_partition(last_value + %s, %s) FROM run_number_seq",
            [PARTITION_RUNS, PARTITION_RUNS],
        )


@contextmanager
def _lock_timeout() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")
