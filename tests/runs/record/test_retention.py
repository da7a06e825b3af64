"""Retention removes the records it is told to, nothing else, and says exactly what it removed."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.db.models.functions import Now

from controlplane.database.locks import advisory_lock
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
from runs.record import partitions as log
from runs.record import retention
from runs.record.partitions import name_of
from runs.record.verify import verify_run
from tests.runs.agent.booted import eventually
from tests.runs.killed import Killed, killed_before
from tests.runs.record_factory import Source, make_run, record
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db(transaction=True)


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
    next_partition()  # or a border may lie between them, and a whole partition goes
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
    with pytest.raises(CommandError, match="no record that can be removed"):
        prune("--run", str(unfinished.pk))
    prune("--older-than", "0")
    assert verify_run(unfinished).ok


def test_a_final_run_whose_record_goes_on_is_not_touched() -> None:
    unfinished = still_open()
    Run.objects.filter(pk=unfinished.pk).settle(Run.Status.CANCELLED)
    prune("--older-than", "0")
    assert verify_run(unfinished).ok


def test_which_has_to_be_said() -> None:
    with pytest.raises(CommandError, match="Name the runs"):
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
        assert cursor.fetchone()[0] != "on"


def old_partition() -> tuple[str, list[Run]]:
    """A partition with two records that are to go, and its name."""
    next_partition()
    runs = [ended(40), ended(40, b"x" * 5000)]
    next_partition()
    return f"run_event_p{runs[0].number // PARTITION_RUNS}", runs


def other_session() -> psycopg.Connection[Any]:
    parameters = connection.get_connection_params()
    keys = ("dbname", "user", "password", "host", "port")
    return psycopg.connect(**{key: parameters[key] for key in keys if key in parameters})


@contextmanager
def read_by_somebody(name: str) -> Iterator[None]:
    """Have a transaction under way that has read of a partition, through the whole log."""
    number = int(name.removeprefix("run_event_p")) * PARTITION_RUNS
    with other_session() as reader:
        reader.execute(
            "SELECT count(*) FROM run_event WHERE run_number BETWEEN %s AND %s",
            [number, number + PARTITION_RUNS - 1],
        )
        yield
        reader.rollback()


def tables() -> dict[str, str]:
    return {name_of(part): str(state) for part, state in log.partitions().items()}


def nothing_is_left_of(name: str, runs: list[Run]) -> bool:
    heads = RunHead.objects.filter(pk__in=[run.number for run in runs])
    marked = all(head.removed_at is not None for head in heads)
    return marked and size_of(*runs) == (0, 0) and name not in tables()


@pytest.mark.parametrize(
    ("statement", "occurrence", "state"),
    [
        ('UPDATE "run_head"', 1, "attached"),
        ('UPDATE "run_head"', 2, "attached"),
        ("ALTER TABLE", 1, "attached"),
        ("DROP TABLE", 1, "detached"),
    ],
)
def test_what_a_killed_command_left_is_taken_up_by_the_next(
    monkeypatch: pytest.MonkeyPatch, statement: str, occurrence: int, state: str
) -> None:
    monkeypatch.setattr(retention, "BATCH", 1)
    name, runs = old_partition()
    young = ended(1)
    with pytest.raises(Killed), killed_before(statement, occurrence):
        prune("--older-than", "30")
    assert tables()[name] == state
    assert f"1 whole partitions ({name})" in prune("--older-than", "30")
    assert nothing_is_left_of(name, runs)
    assert verify_run(young).ok


def test_marked_records_lose_their_events_though_their_partition_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "BATCH", 1)
    _, (first, second) = old_partition()
    with pytest.raises(Killed), killed_before('UPDATE "run_head"', 2):
        prune("--older-than", "30")
    assert size_of(first) != (0, 0)
    Run.objects.filter(pk=second.pk).update(finished_at=Now())
    assert "0 whole partitions" in prune("--older-than", "30")
    assert size_of(first) == (0, 0)
    assert verify_run(second).ok


def test_a_detachment_that_was_cut_off_is_finished_by_the_next_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "LOCK_TIMEOUT_MS", 100)
    name, runs = old_partition()
    with read_by_somebody(name):
        told = prune("--older-than", "30")
        assert tables()[name] == "detaching"
        assert f"Still being read; the next pruneruns drops them: {name}." in told
        assert "Busy" not in told
        assert RunHead.objects.get(pk=runs[0].number).removed_at is not None
        assert f"Still being read; the next pruneruns drops them: {name}." in prune(
            "--older-than", "30"
        )
    assert f"1 whole partitions ({name})" in prune("--older-than", "30")
    assert nothing_is_left_of(name, runs)


def test_a_session_that_is_cut_while_it_waits_leaves_what_the_next_command_finishes() -> None:
    name, runs = old_partition()

    def doomed() -> None:
        try:
            prune("--older-than", "30")
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool, other_session() as admin:
        admin.autocommit = True
        with read_by_somebody(name):
            work = pool.submit(doomed)
            eventually(lambda: tables()[name] == "detaching")
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'ALTER TABLE%%DETACH%%'"
            )
            with pytest.raises(DatabaseError):
                work.result(LONG_WAIT)
    assert tables()[name] == "detaching"
    assert f"1 whole partitions ({name})" in prune("--older-than", "30")
    assert nothing_is_left_of(name, runs)


def test_others_read_and_write_while_a_partition_waits_for_its_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "LOCK_TIMEOUT_MS", 30_000)
    name, runs = old_partition()
    young = ended(1)

    def pruned() -> str:
        try:
            return prune("--older-than", "30")
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with read_by_somebody(name), connection.cursor() as cursor:
            work = pool.submit(pruned)
            eventually(lambda: tables()[name] == "detaching")
            cursor.execute("SET lock_timeout = '1s'")
            assert verify_run(young).ok
            assert verify_run(ended(1)).ok
            next_partition()
            # Another partition begins, which was made before.
            assert verify_run(ended(1)).ok
            assert not work.done()
            cursor.execute("RESET lock_timeout")
        assert f"1 whole partitions ({name})" in work.result(LONG_WAIT)
    assert nothing_is_left_of(name, runs)


def test_two_commands_at_once_do_not_meet() -> None:
    never = threading.Event()
    with (
        ThreadPoolExecutor(1) as pool,
        advisory_lock("prune-records", timeout=LONG_WAIT, cancelled=never),
    ):
        work = pool.submit(pruned_alone)
        with pytest.raises(CommandError, match="Another pruneruns is running"):
            work.result(LONG_WAIT)


def pruned_alone() -> None:
    try:
        prune("--older-than", "30")
    finally:
        connection.close()


def test_a_partition_stays_while_a_run_with_one_of_its_numbers_is_being_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "LOCK_TIMEOUT_MS", 100)
    next_partition()
    old = ended(40)
    made, pruned_meanwhile = threading.Event(), threading.Event()
    numbers = []

    def late() -> None:
        try:
            with transaction.atomic():
                run = make_run()
                numbers.append(run.number)
                made.set()
                pruned_meanwhile.wait(LONG_WAIT)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(late)
        made.wait(LONG_WAIT)
        next_partition()
        told = prune("--older-than", "30")
        pruned_meanwhile.set()
        work.result(LONG_WAIT)
    assert "0 whole partitions" in told
    assert size_of(old) == (0, 0)
    assert numbers[0] // PARTITION_RUNS == old.number // PARTITION_RUNS
    late_run = Run.objects.get(number=numbers[0])
    record(late_run)
    assert verify_run(late_run).ok


def test_a_busy_partition_is_emptied_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LOCK_TIMEOUT_MS", 50)
    name, runs = old_partition()
    with other_session() as admin:
        # As the making of a partition does, or an ANALYZE.
        admin.execute("LOCK TABLE ONLY run_event IN SHARE UPDATE EXCLUSIVE MODE")
        told = prune("--older-than", "30")
        admin.rollback()
    assert f"In use, so their records were removed row by row: {name}." in told
    assert name in partitions()
    assert size_of(*runs) == (0, 0)
    assert RunHead.objects.get(pk=runs[0].number).removed_at is not None
    assert f"1 whole partitions ({name})" in prune("--older-than", "30")
    assert nothing_is_left_of(name, runs)
