"""Statements that repeat are prepared by PostgreSQL, and what that must not break."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection

from controlplane.apps import STATEMENTS_KEPT
from controlplane.database.columns import ROWS_OF_A_STATEMENT, with_columns
from controlplane.work.models import Heartbeat
from runs.models import Run, RunChange, RunHead
from runs.record.head_locks import locked_by_holder
from runs.record.reading.rows import fetch
from runs.recording import claims
from runs.services import Report, update_reported
from tests.factories import OWNER, claim, make_job
from tests.runs.record_factory import make_run
from workspaces.lifecycle.attempt_states import find_ready
from workspaces.models import WarmMember

pytestmark = pytest.mark.django_db

OFTEN = 8
"""More than it takes until a statement is prepared."""


def prepared() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        return [statement for (statement,) in cursor.fetchall()]


def test_a_read_that_repeats_is_prepared_once() -> None:
    for number in range(OFTEN):
        list(Heartbeat.objects.filter(worker_id=f"worker-{number}").values_list("pk"))
    assert len([one for one in prepared() if "worker_id" in one and "heartbeat" in one]) == 1


def test_a_connection_keeps_more_statements_than_the_driver_would() -> None:
    connection.ensure_connection()
    assert connection.connection.prepared_max == STATEMENTS_KEPT


def test_a_read_of_the_log_is_never_prepared() -> None:
    for number in range(OFTEN):
        fetch("SELECT sequence FROM run_event WHERE run_number = %(run)s", {"run": number})
    assert not [one for one in prepared() if "run_event" in one]


def claim_command() -> None:
    claims.claim(uuid.uuid4(), worker_id="worker", lease=timedelta(seconds=1))


def lock_head() -> None:
    run = make_run()
    Run.objects.filter(pk=run.pk).free().acquire(worker_id="worker", lease=timedelta(minutes=1))
    run.refresh_from_db()
    locked_by_holder(run.number, run.fence)


def look_for_a_ready_attempt() -> None:
    find_ready(uuid.uuid4(), owner_user_id=OWNER)


def claim_a_warm_member() -> None:
    WarmMember.objects.claim(key="none", engine_id="none", run_id=uuid.uuid4())


def claim_a_job() -> None:
    claim(make_job())


@pytest.mark.parametrize(
    ("work", "table"),
    [
        (claim_command, "runs_run"),
        (lock_head, "run_head"),
        (look_for_a_ready_attempt, "workspaces_attempt"),
        (claim_a_warm_member, "workspaces_warmmember"),
        (claim_a_job, "workspaces_buildjob"),
    ],
)
def test_a_column_that_an_upgrade_adds_breaks_no_prepared_statement(
    work: Callable[[], None], table: str
) -> None:
    for _ in range(OFTEN):
        work()
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # nothing may wait where a table changes
        cursor.execute(f"ALTER TABLE {table} ADD COLUMN later text")
    work()


def test_all_columns_of_a_model_take_the_place_of_a_star() -> None:
    sql = with_columns("RETURNING head.*, ahead.*", head=RunHead)
    columns = [f'head."{field.column}"' for field in RunHead._meta.concrete_fields]
    assert sql == f"RETURNING {', '.join(columns)}, ahead.*"


def test_a_report_may_list_more_files_than_one_statement_has_values_for() -> None:
    run = make_run()
    most = 2**16 // len(RunChange._meta.concrete_fields)
    files = [{"path": str(number), "change": "added"} for number in range(most + 1)]
    assert len(files) > ROWS_OF_A_STATEMENT
    update_reported(run, Report(status=Run.Status.COMPLETED, changed_files=files))
    assert RunChange.objects.filter(run_number=run.number).count() == len(files)
