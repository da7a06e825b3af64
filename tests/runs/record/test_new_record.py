"""A run and the head of its record are made together, or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from django.db import (
    DatabaseError,
    IntegrityError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)

from runs.models import PARTITION_RUNS, Run, RunHead
from runs.record import chain, partitions
from runs.record.new_record import insert_with_head
from runs.record.verify import verify_run
from runs.services import NewRun, store_run
from tests.factories import make_job
from tests.runs.record_factory import OWNER, Source, make_run
from tests.support.sent_statements import sent_statements
from workspaces.models import Workspace

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def workspace() -> Workspace:
    return Workspace.objects.create(owner_user_id=OWNER, name="w")


def a_run(workspace: Workspace, **values: object) -> Run:
    """Return a run that is stored nowhere."""
    return Run(
        workspace=workspace,
        owner_user_id=OWNER,
        harness_id="shell",
        mode=Run.Mode.ONE_SHOT,
        recorded=True,
        **values,
    )


@pytest.fixture
def far(transactional_db: None) -> Iterator[int]:
    """The first number of a partition that is not there; it is removed again."""
    part = max(partitions.partitions()) + 10
    yield part * PARTITION_RUNS
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {partitions.name_of(part)}")


def test_a_run_and_its_head_are_one_statement(workspace: Workspace) -> None:
    run = a_run(workspace)

    with sent_statements() as statements:
        insert_with_head(run)

    assert len(statements) == 1, "\n".join(statements)


def test_a_run_that_a_client_asks_for_has_its_head_by_the_same_statement() -> None:
    job = make_job()
    asked = NewRun(
        workspace=job.attempt.workspace,
        attempt=job.attempt,
        owner_user_id=OWNER,
        harness_id="shell",
        mode=Run.Mode.ONE_SHOT,
        recorded=True,
        command={"executable": "/bin/true", "args": []},
    )

    with transaction.atomic(), sent_statements() as statements:
        run = store_run(asked)

    writing = [one for one in statements if "INSERT" in one or "ensure_partition" in one]
    assert len(writing) == 1, "\n".join(writing)
    assert RunHead.objects.filter(pk=run.number).exists()


def test_a_new_run_is_in_memory_what_it_is_in_the_database(workspace: Workspace) -> None:
    run = a_run(
        workspace,
        command={"executable": "/bin/echo", "args": ["%s", "{}", "'"]},
        prompt='100 % of "it" {0}',
        sealed_input=b"\0sealed",
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
    )

    insert_with_head(run)

    stored = Run.objects.get(pk=run.pk)
    for field in Run._meta.local_concrete_fields:
        here, there = (getattr(one, field.attname) for one in (run, stored))
        if isinstance(there, memoryview):
            there = bytes(there)
        assert here == there, field.name
    run.harness_id = "another"
    run.save()
    assert Run.objects.get().harness_id == "another"


def test_the_head_of_a_new_run_is_at_the_beginning_of_its_chain(workspace: Workspace) -> None:
    run = a_run(workspace)

    insert_with_head(run)

    head = RunHead.objects.get()
    begun = RunHead(run_number=run.number, owner_user_id=OWNER, chain_head=chain.genesis(run.pk))
    for field in RunHead._meta.local_concrete_fields:
        stored = getattr(head, field.attname)
        if isinstance(stored, memoryview):
            stored = bytes(stored)
        assert stored == getattr(begun, field.attname), field.name
    source = Source(run)
    source.open()
    source.started()
    source.sealed()
    source.append()
    assert verify_run(run).ok


def test_a_new_run_has_room_for_its_events(workspace: Workspace, far: int) -> None:
    run = a_run(workspace, number=far)

    insert_with_head(run)

    assert run.number // PARTITION_RUNS in partitions.partitions()


def test_where_no_room_can_be_made_there_is_neither_run_nor_head(
    workspace: Workspace, far: int
) -> None:
    with connection.cursor() as cursor:
        taken = partitions.name_of(far // PARTITION_RUNS)
        cursor.execute(f"CREATE TABLE {taken} (of_somebody_else int)")
    run = a_run(workspace, number=far)

    with pytest.raises(ProgrammingError):
        insert_with_head(run)

    assert not Run.objects.filter(pk=run.pk).exists()
    assert not RunHead.objects.filter(pk=far).exists()


def test_where_there_is_a_head_already_no_run_is_made(workspace: Workspace) -> None:
    earlier = make_run()
    RunHead.objects.filter(pk=earlier.number).update(run_number=earlier.number + 5)
    run = a_run(workspace, number=earlier.number + 5)

    with pytest.raises(IntegrityError):
        insert_with_head(run)

    assert not Run.objects.filter(pk=run.pk).exists()


def test_a_connection_that_is_lost_before_the_commit_leaves_neither(workspace: Workspace) -> None:
    run = a_run(workspace)

    def make_and_lose() -> None:
        with transaction.atomic():
            insert_with_head(run)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(DatabaseError):
        make_and_lose()

    connection.close()
    assert not Run.objects.exists()
    assert not RunHead.objects.exists()


def test_a_transaction_in_which_a_run_was_refused_cannot_be_committed(
    workspace: Workspace,
) -> None:
    run = make_run()
    again = a_run(workspace, id=run.pk)

    with transaction.atomic():
        with pytest.raises(IntegrityError):
            insert_with_head(again)
        assert connection.needs_rollback

    assert RunHead.objects.count() == 1


def test_runs_that_are_made_at_once_where_there_is_no_room_share_it(
    workspace: Workspace, far: int
) -> None:
    def make(number: int) -> uuid.UUID:
        try:
            run = a_run(workspace, number=number)
            insert_with_head(run)
            return run.pk
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(make, range(far, far + 8)))

    assert made <= set(Run.objects.values_list("pk", flat=True))
    assert RunHead.objects.filter(pk__gte=far).count() == len(made) == 8
