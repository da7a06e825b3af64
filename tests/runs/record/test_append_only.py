"""The log refuses changes, whoever of the application asks."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection, transaction

from runs.models import PARTITION_RUNS, RunEvent
from runs.record.verify import verify_run
from tests.runs.record_factory import make_run, record

pytestmark = pytest.mark.django_db


def refused(statement: str, *values: int) -> None:
    with (
        pytest.raises(DatabaseError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement, values)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE run_event SET body = 'x' WHERE run_number = %s",
        "UPDATE run_event SET run_number = run_number + 100000 WHERE run_number = %s",
        "DELETE FROM run_event WHERE run_number = %s",
        "WITH n AS (SELECT %s::bigint AS n) DELETE FROM run_event USING n WHERE run_number = n",
    ],
)
def test_rows_of_the_log_are_neither_changed_nor_deleted(statement: str) -> None:
    run = make_run()
    record(run)
    refused(statement, run.number)
    assert verify_run(run).ok


def test_neither_through_a_partition() -> None:
    run = make_run()
    record(run)
    partition = f"run_event_p{run.number // PARTITION_RUNS}"
    refused(f"UPDATE {partition} SET kind = 1 WHERE run_number = %s", run.number)  # noqa: S608
    refused(f"DELETE FROM {partition} WHERE run_number = %s", run.number)  # noqa: S608
    refused(f"TRUNCATE {partition}")


def test_the_log_is_not_emptied() -> None:
    refused("TRUNCATE run_event")


def test_nor_through_the_model() -> None:
    run = make_run()
    record(run)
    events = RunEvent.objects.filter(run_number=run.number)
    for change in (lambda: events.update(kind=1), events.delete):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            change()


def test_even_retention_changes_nothing_that_it_leaves() -> None:
    run = make_run()
    record(run)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL svc.retention = 'on'")
        cursor.execute("UPDATE run_event SET kind = 9 WHERE run_number = %s", [run.number])
    assert verify_run(run).ok
