"""Reads that are compiled once: the same rows as the ORM's own, whatever is asked for next."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Case, F, Model, QuerySet, Value, When
from django.db.models.functions import Now
from django.db.models.sql.compiler import SQLCompiler
from pytest_django import DjangoAssertNumQueries

from controlplane.database.compiled_reads import compiled_rows
from controlplane.work.models import Heartbeat
from tests.factories import OWNER, make_job, make_worker
from workspaces.models import BuildJob, Sandbox, Workspace

pytestmark = pytest.mark.django_db


def sandboxes(key: uuid.UUID, owner: str) -> QuerySet[Sandbox]:
    """A sandbox with what belongs to it; its blueprint is left out."""
    rows = Sandbox.objects.filter(pk=key, owner_user_id=owner)
    return rows.select_related("workspace", "latest_attempt").defer("spec", "workspace__name")


def workspaces(key: uuid.UUID) -> QuerySet[Workspace]:
    """A workspace with its latest sandbox, which it need not have."""
    return Workspace.objects.filter(pk=key).select_related("latest_sandbox__latest_attempt")


def stale_workers(stale: timedelta) -> QuerySet[Heartbeat, tuple[Any, ...]]:
    """Columns of the workers that were not seen for so long."""
    rows = Heartbeat.objects.filter(seen_at__lte=Now() - stale).order_by("worker_id")
    return rows.values_list("worker_id", "slots", "seen_at")


def told(first: uuid.UUID, second: uuid.UUID) -> QuerySet[BuildJob]:
    """Two jobs, and which of both each is; each value is sent twice."""
    which = Case(When(pk=first, then=Value("first")), When(pk=second, then=Value("second")))
    return BuildJob.objects.filter(pk__in=[first, second]).annotate(which=which).order_by("pk")


def oldest(most: int) -> QuerySet[BuildJob]:
    """As many jobs as are asked for."""
    return BuildJob.objects.order_by("pk").annotate(more=F("attempt_count") + most)[:most]


def loaded(row: Any) -> Any:
    """Everything that was read of a row, with its related ones, without reading more."""
    if not isinstance(row, Model):
        return row
    members = {name: value for name, value in vars(row).items() if name != "_state"}
    related = {name: loaded(one) for name, one in row._state.fields_cache.items()}
    return type(row), row._state.db, row._state.adding, members, related


def assert_same(rows: Callable[..., QuerySet[Any, Any]], *values: Any) -> list[Any]:
    """Fail unless both ways find the same; return it."""
    found = compiled_rows(rows, *values)
    assert [loaded(one) for one in found] == [loaded(one) for one in rows(*values)]
    return found


def test_each_value_is_that_of_the_call() -> None:
    jobs = [make_job() for _ in range(3)]
    for job in jobs:
        sandbox = job.attempt.sandbox_id
        (found,) = assert_same(sandboxes, sandbox, OWNER)
        assert found.pk == sandbox
        assert assert_same(sandboxes, sandbox, "usr_other") == []
        (found,) = assert_same(workspaces, job.attempt.workspace_id)
        assert found.latest_sandbox.latest_attempt.pk == job.attempt_id
    assert assert_same(sandboxes, uuid.uuid4(), OWNER) == []
    pair = assert_same(told, jobs[2].pk, jobs[0].pk)
    assert [job.which for job in pair] == ["second", "first"]


def test_what_was_left_out_is_read_when_it_is_asked_for() -> None:
    job = make_job()
    (found,) = compiled_rows(sandboxes, job.attempt.sandbox_id, OWNER)
    assert found.get_deferred_fields() == {"spec"}
    assert (found.spec, found.workspace.name) == ({"harness": {"id": "shell"}}, "Test")


def test_a_row_without_its_related_one_has_none() -> None:
    workspace = Workspace.objects.create(owner_user_id=OWNER, name="Test")
    (found,) = assert_same(workspaces, workspace.pk)
    assert found.latest_sandbox is None


def test_columns_are_tuples_of_python_values() -> None:
    for number, seen in enumerate((0, 10, 100)):
        make_worker(f"worker-{number}", seen=timedelta(minutes=seen))
    Heartbeat.objects.update(slots={"build": {"capacity": 2, "in_use": 1}})
    for stale, workers in ((5, 2), (50, 1), (500, 0)):
        found = assert_same(stale_workers, timedelta(minutes=stale))
        assert len(found) == workers
        assert all(slots == {"build": {"capacity": 2, "in_use": 1}} for _, slots, _ in found)


def test_a_number_makes_a_statement_of_its_own() -> None:
    jobs = [make_job() for _ in range(3)]
    for most in (1, 3, 2, 1):
        found = assert_same(oldest, most)
        assert [(job.pk, job.more) for job in found] == [(job.pk, most) for job in jobs[:most]]


def test_the_second_read_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    first, second = make_job(), make_job()
    compiled_rows(sandboxes, first.attempt.sandbox_id, OWNER)
    monkeypatch.delattr(SQLCompiler, "as_sql")
    with django_assert_num_queries(1):
        (found,) = compiled_rows(sandboxes, second.attempt.sandbox_id, OWNER)
    assert found.pk == second.attempt.sandbox_id


@pytest.mark.django_db(transaction=True)
def test_another_thread_reads_over_its_own_connection() -> None:
    job = make_job()
    ours = connection.connection
    compiled_rows(workspaces, job.attempt.workspace_id)
    seen: list[Any] = []

    def read() -> None:
        seen.append(compiled_rows(workspaces, job.attempt.workspace_id))
        seen.append(connection.connection is not ours)
        connection.close()

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert seen == [[Workspace(pk=job.attempt.workspace_id)], True]


def by_words(first: str, second: str) -> QuerySet[Sandbox]:
    """A statement that has a value in another form than it was given."""
    return Sandbox.objects.filter(tag=first, repository__contains=second)


def with_attempts(key: uuid.UUID) -> QuerySet[Sandbox]:
    """Rows for which there is a second statement."""
    return Sandbox.objects.filter(pk=key).prefetch_related("attempts")


def as_members(key: uuid.UUID) -> QuerySet[Sandbox, dict[str, Any]]:
    """Rows that are neither instances nor tuples."""
    return Sandbox.objects.filter(pk=key).values("pk")


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (by_words, ("a", "b")),
        (with_attempts, (uuid.uuid4(),)),
        (as_members, (uuid.uuid4(),)),
        (workspaces, (None,)),
        (oldest, (True,)),
    ],
    ids=["another form", "prefetched", "members", "none", "bool"],
)
def test_what_would_not_be_the_same_each_time_is_refused(
    rows: Callable[..., QuerySet[Any, Any]], values: tuple[Any, ...]
) -> None:
    for _ in range(2):
        with pytest.raises(TypeError):
            compiled_rows(rows, *values)
