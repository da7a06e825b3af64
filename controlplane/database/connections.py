"""Database sessions that say whose they are, so that those of dead workers can be ended."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db import connection, models
from django.db.backends.base.base import BaseDatabaseWrapper

log = structlog.get_logger(__name__)

SESSION_NAME_LENGTH = 63
"""PostgreSQL cuts longer names; the end of a worker's id is what is unique."""


def name_session(session: BaseDatabaseWrapper, worker_id: str) -> None:
    """Give a database connection the name of its worker, as far as a name may be long."""
    with session.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('application_name', %s, false)", [worker_id[-SESSION_NAME_LENGTH:]]
        )


def end_sessions_of_dead_workers(
    heartbeats: type[models.Model], *, kind: str, stale: timedelta
) -> int:
    """Close the database connections of workers of a kind that stopped beating ``stale`` ago.

    ``heartbeats`` has the columns ``worker_id``, ``kind`` and ``seen_at``. Other kinds may beat
    more slowly, and are for their own workers to judge. A process that stands still, or whose
    machine is gone, keeps its connections open and with them its locks. One that wakes up connects
    anew. Returns how many connections there were.
    """
    table = connection.ops.quote_name(heartbeats._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(session.pid))"  # noqa: S608 - ours
            f" FROM pg_stat_activity AS session JOIN {table} AS worker"
            " ON session.application_name = right(worker.worker_id, %s)"
            " WHERE worker.kind = %s AND worker.seen_at <= now() - make_interval(secs => %s)"
            " AND session.usename = current_user AND session.datname = current_database()",
            [SESSION_NAME_LENGTH, kind, stale.total_seconds()],
        )
        row = cursor.fetchone()
    ended = int(row[0]) if row else 0
    if ended:
        log.warning("sessions_of_dead_workers_ended", sessions=ended)
    return ended
