"""Beginning a record: its run, its head and room for its events, in one statement."""

from __future__ import annotations

from typing import Any

from django.db import connection, models, transaction
from django.db.models.expressions import RawSQL
from django.db.models.sql import InsertQuery

from runs.models import PARTITION_RUNS, Run, RunHead
from runs.record import chain


def insert_with_head(run: Run) -> None:
    """Store a new run and the head of its record, and make room for its events.

    All of it or nothing, also outside of a transaction. What the database has chosen, as the run's
    number, is in ``run`` afterwards.
    """
    head = RunHead(
        run_number=RawSQL("(SELECT number FROM new_run)", []),
        owner_user_id=run.owner_user_id,
        chain_head=chain.genesis(run.pk),
    )
    run_sql, run_values = _insertion(run)
    head_sql, head_values = _insertion(head)
    with transaction.mark_for_rollback_on_error(connection.alias), connection.cursor() as cursor:
        cursor.execute(
            _INSERT.format(run=run_sql, head=head_sql), [*run_values, *head_values, PARTITION_RUNS]
        )
        run.number, run.queued_at, _ = cursor.fetchone()
    run._state.adding, run._state.db = False, connection.alias


_INSERT = """
WITH new_run AS ({run} RETURNING number, queued_at),
head AS ({head})
SELECT number, queued_at, run_event_ensure_partition(number, %s) FROM new_run
"""


def _insertion(row: models.Model) -> tuple[str, tuple[Any, ...]]:
    """Return the ``INSERT`` of a row as the ORM would send it, with its values."""
    query = InsertQuery(type(row))
    query.insert_values(row._meta.local_concrete_fields, [row])
    ((sql, values),) = query.get_compiler(connection=connection).as_sql()
    return sql, values
