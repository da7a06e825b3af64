"""Retention removes the records it is told to, nothing else, and says exactly what it removed."""

from __future__ import annotations

import io
from datetime import timedelta

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now

from runs.models import (
    PARTITION_RUNS,
    Run,
    RunChange,
    RunCheckpoint,
    RunEvent,
    RunHead,
    RunLoss,
    RunProcess,
)
from runs.record import retention
from runs.record.verify import verify_run
from tests.runs.record_factory import Source, make_run, record

pytestmark = pytest.mark.django_db


def ended(days_ago: float = 0, output: bytes = b"hello\n") -> Run:
    """A run whose record is whole, finished so long ago."""
    run = make_run()
    record(run, [output])
    Run.objects.filter(pk=run.pk).update(finished_at=Now() - timedelta(days=days_ago))
    return run


def still_open() -> Run:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.append()
    return run


def prune(*arguments: str) -> str:
    told = io.StringIO()
    call_command("pruneruns", *arguments, stdout=told)
    return told.getvalue()


def size_of(*runs: Run) -> tuple[int, int]:
    """Events and bytes that the log holds of these runs."""
    events = RunEvent.objects.filter(run_number__in=[run.number for run in runs])
    sizes = [len(bytes(event.meta)) + len(bytes(event.body)) for event in events]
    return len(sizes), sum(sizes)


def next_partition() -> None:
    """Let the next run be the first of a partition."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('run_number_seq')")
        (number,) = cursor.fetchone()
        part = number // PARTITION_RUNS + 1
        cursor.execute("SELECT setval('run_number_seq', %s)", [part * PARTITION_RUNS - 1])


def partitions() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits "
            "WHERE inhparent = 'run_event'::regclass"
        )
        return {name for (name,) in cursor.fetchall()}


def test_old_records_go_and_everything_else_stays() -> None:
    old, young, unfinished = ended(40), ended(2), still_open()
    events, size = size_of(old)
    told = prune("--older-than", "30")
    assert told == (
        f"Removed the records of 1 runs: {events} events, {size} bytes, 0 whole partitions.\n"
    )
    for model in (RunEvent, RunProcess, RunChange, RunCheckpoint, RunLoss):
        assert not model.objects.filter(run_number=old.number).exists()
    head = RunHead.objects.get(pk=old.number)
    assert head.removed_at is not None
    assert (head.removed_bytes, head.event_count) == (size, events)
    assert head.seal is not None
    assert head.signature is not None
    found = verify_run(old)
    assert not found.ok
    assert "removed" in found.message
    assert verify_run(young).ok
    assert verify_run(unfinished).ok
    assert prune("--older-than", "30").startswith("Removed the records of 0 runs: 0 events")


def test_a_dry_run_tells_the_same_and_removes_nothing() -> None:
    old = ended(40)
    would = prune("--older-than", "30", "--dry-run")
    assert verify_run(old).ok
    assert RunHead.objects.get(pk=old.number).removed_at is None
    assert prune("--older-than", "30") == would.replace("Would remove", "Removed")


def test_one_run_can_be_named() -> None:
    one, other = ended(), ended()
    prune("--run", str(one.pk))
    assert not verify_run(one).ok
    assert verify_run(other).ok


def test_an_open_run_is_never_touched_even_when_it_is_named() -> None:
    unfinished = still_open()
    with pytest.raises(CommandError, match="no record that may be removed"):
        prune("--run", str(unfinished.pk))
    prune("--older-than", "0")
    assert verify_run(unfinished).ok


def test_a_final_run_whose_record_goes_on_is_not_touched() -> None:
    unfinished = still_open()
    Run.objects.filter(pk=unfinished.pk).settle(Run.Status.CANCELLED)
    prune("--older-than", "0")
    assert verify_run(unfinished).ok


def test_which_has_to_be_said() -> None:
    with pytest.raises(CommandError, match="Say which"):
        prune()
    for wrong in ("-1", "x", "1e9", "nan"):
        with pytest.raises(CommandError):
            prune("--older-than", wrong)


def test_a_partition_of_which_nothing_is_left_is_dropped_whole() -> None:
    next_partition()
    runs = [ended(40), ended(40, b"x" * 5000)]
    name = f"run_event_p{runs[0].number // PARTITION_RUNS}"
    next_partition()
    young = ended(1)
    assert name in partitions()
    events, size = size_of(*runs)
    told = prune("--older-than", "30")
    assert told == (
        f"Removed the records of 2 runs: {events} events, {size} bytes, "
        f"1 whole partitions ({name}).\n"
    )
    assert name not in partitions()
    assert verify_run(young).ok
    assert {head.removed_bytes is None for head in RunHead.objects.exclude(pk=young.number)} == {
        False
    }


def test_a_partition_stays_while_one_of_its_records_does() -> None:
    next_partition()
    old, young = ended(40), ended(1)
    name = f"run_event_p{old.number // PARTITION_RUNS}"
    next_partition()
    assert "0 whole partitions" in prune("--older-than", "30")
    assert name in partitions()
    assert verify_run(young).ok


def test_the_partition_that_new_runs_go_to_stays() -> None:
    next_partition()
    old = ended(40)
    assert "0 whole partitions" in prune("--older-than", "30")
    assert f"run_event_p{old.number // PARTITION_RUNS}" in partitions()
    assert verify_run(ended(1)).ok


def test_the_permission_to_delete_ends_with_the_deletion() -> None:
    ended(40)
    prune("--older-than", "30")
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('svc.retention', true)")
        assert cursor.fetchone() == ("off",)


@pytest.mark.django_db(transaction=True)
def test_a_busy_partition_is_emptied_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LOCK_TIMEOUT", "50ms")
    next_partition()
    old = ended(40)
    name = f"run_event_p{old.number // PARTITION_RUNS}"
    next_partition()
    parameters = connection.get_connection_params()
    keys = ("dbname", "user", "password", "host", "port")
    chosen = {key: parameters[key] for key in keys if key in parameters}
    with psycopg.connect(**chosen) as reader:
        reader.execute(f"SELECT count(*) FROM {name}")  # noqa: S608
        told = prune("--older-than", "30")
        reader.rollback()
    assert f"Busy, so their records went row by row: {name}." in told
    assert name in partitions()
    assert size_of(old) == (0, 0)
    assert RunHead.objects.get(pk=old.number).removed_at is not None
