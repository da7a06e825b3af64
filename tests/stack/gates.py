"""Gates in the database at which a worker stands still, so that it dies at exactly that point.

The product has no hooks for tests. Instead the chaos database has triggers that take a shared
advisory lock; a test that holds the lock exclusively stops every transaction that comes by. A gate
``BEFORE`` a write loses it when the worker dies there; a write that is a transaction of its own the
database goes on with, unless the test has it ended as well (``ClosedGate.lose``). A gate ``AFTER``
one is passed while the transaction commits, so the write is kept although the worker never learns
of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import psycopg

from tests.stack.processes import wait_for
from tests.support.waiting import LONG_WAIT

_CLAIM = ("workspaces_buildjob", "old.attempt_count <> new.attempt_count")
_PUBLISHED = ("workspaces_buildjob", "old.status = 'running' and new.status = 'succeeded'")
_READY = ("workspaces_attempt", "old.status = 'running' and new.status = 'succeeded'")
# Of the only source of a record, as runs that are executed have it; boot runs have several.
_STORED = (
    "run_head",
    "old.last_sequence <> new.last_sequence and old.source_base = 0 and new.source_base = 0",
)
_RUN_CLAIM = ("runs_run", "old.claim_count <> new.claim_count and new.mode = 'one-shot'")
_RUN_SETTLED = ("runs_run", "new.finished_at is not null and new.mode = 'one-shot'")
_DELIVERED = (
    "workspaces_credentialreference",
    "old.delivered_at is distinct from new.delivered_at",
)


_TRANSITION_CLAIM = ("workspaces_transition", "old.claim_count <> new.claim_count")
_TRANSITION_STEP = (
    "workspaces_transition",
    "old.claim_count = new.claim_count and old.lease_expires_at < new.lease_expires_at",
)
_STOPPED = (
    "workspaces_runtimeinstance",
    "old.status = 'stopping' and new.status = 'stopped'",
)
_DELETED = ("workspaces_workspace", "old.deleted_at is null and new.deleted_at is not null")


class Gate(Enum):
    """A point of a job's or run's life: key, table and condition, and whether at the commit."""

    AFTER_CLAIM = (71001, *_CLAIM, True)
    BEFORE_PUBLISHED = (71002, *_PUBLISHED, False)
    AFTER_PUBLISHED = (71003, *_PUBLISHED, True)
    BEFORE_READY = (71004, *_READY, False)
    AFTER_READY = (71005, *_READY, True)
    AFTER_RUN_CLAIM = (71006, *_RUN_CLAIM, True)
    BEFORE_STORED = (71007, *_STORED, False)
    AFTER_STORED = (71008, *_STORED, True)
    AFTER_RUN_SETTLED = (71009, *_RUN_SETTLED, True)
    AFTER_TRANSITION_CLAIM = (71010, *_TRANSITION_CLAIM, True)
    AT_TRANSITION_STEP = (71011, *_TRANSITION_STEP, False)
    BEFORE_STOPPED = (71012, *_STOPPED, False)
    AFTER_STOPPED = (71013, *_STOPPED, True)
    BEFORE_DELETED = (71014, *_DELETED, False)
    AFTER_DELETED = (71015, *_DELETED, True)
    BEFORE_DELIVERED = (71016, *_DELIVERED, False)
    AFTER_DELIVERED = (71017, *_DELIVERED, True)

    @property
    def key(self) -> int:
        """The advisory lock's key."""
        return self.value[0]


def build_gates(connection: psycopg.Connection) -> None:
    """Put every gate into the database; open until somebody closes one."""
    assert len({gate.key for gate in Gate}) == len(Gate), "two gates would be closed at once"
    connection.execute(
        "create function chaos_gate() returns trigger language plpgsql as $$ begin"
        " perform pg_advisory_xact_lock_shared(tg_argv[0]::bigint); return null; end $$"
    )
    for gate in Gate:
        key, table, condition, at_commit = gate.value
        timing = "deferrable initially deferred" if at_commit else "not deferrable"
        connection.execute(
            f"create constraint trigger chaos_{gate.name.lower()} after update on {table} {timing}"
            f" for each row when ({condition}) execute function chaos_gate({key})"
        )


class ClosedGate:
    """A gate that a test holds closed."""

    def __init__(self, connection: psycopg.Connection, gate: Gate) -> None:
        self._connection = connection
        self._gate = gate

    def wait_reached(self, seconds: float = LONG_WAIT) -> None:
        """Wait until a worker stands at the gate."""
        query = (
            "select 1 from pg_locks where locktype = 'advisory' and objid = %s and not granted"
            " and database = (select oid from pg_database where datname = current_database())"
        )

        def reached() -> bool:
            return self._connection.execute(query, [self._gate.key]).fetchone() is not None

        wait_for(reached, f"a worker is at {self._gate.name}", seconds)

    def lose(self) -> None:
        """End the transaction of the worker that stood here, which has died; nothing is written."""
        query = (
            "select pg_terminate_backend(pid, 60000) from pg_locks where locktype = 'advisory'"
            " and objid = %s and not granted"
            " and database = (select oid from pg_database where datname = current_database())"
        )
        ended = self._connection.execute(query, [self._gate.key]).fetchall()
        assert ended, f"nobody was at {self._gate.name}"

    def let_one_pass(self) -> None:
        """Let who stands at the gate through, and nobody else."""
        self._connection.execute("select pg_advisory_unlock(%s)", [self._gate.key])
        # Who waits has the lock before us, and we have it when that transaction is over.
        self._connection.execute("select pg_advisory_lock(%s)", [self._gate.key])

    def open(self) -> None:
        """Let everybody through."""
        self._connection.execute("select pg_advisory_unlock_all()")


@contextmanager
def closed(gate: Gate, database_url: str) -> Iterator[ClosedGate]:
    """Hold a gate closed inside the block."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(%s)", [gate.key])
        yield ClosedGate(connection, gate)
