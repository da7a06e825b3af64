"""What a check of the rows says of each thing that is wrong, one guard at a time."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from runs.agent.record.frames import Kind
from runs.models import Run, RunCheckpoint, RunHead, RunLoss, RunProcess
from runs.record import seal, signatures
from runs.record.verify import verify_run
from tests.runs.record_factory import Source, make_run, record

pytestmark = pytest.mark.django_db


def change(statement: str, run: Run) -> None:
    """Do something to the rows of a run."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE run_event DISABLE TRIGGER run_event_append_only")
        cursor.execute(statement, [run.number])
        assert cursor.rowcount > 0


@pytest.fixture(autouse=True)
def another(db: None) -> None:
    """Another run's record with one of everything, in the places that those of the tests have."""
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.append()
    source.process(["another"])
    source.append()
    source.event(999, sequence=8)
    source.event(Kind.FILE_DIFF_ENTRY, {"position": 1, "path": "another", "change": "added"})
    source.append()


def going_on() -> Run:
    """Return a run whose record goes on: four events, the second and third batch with a hole."""
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.append()
    source.output(source.process(), b"some")
    source.append()
    source.event(999, sequence=7)
    source.append()
    return run


def found(run: Run) -> tuple[bool, int | None, str]:
    run.refresh_from_db()
    verdict = verify_run(run)
    return verdict.ok, verdict.first_bad, verdict.message


def test_a_record_that_goes_on_is_sound_and_says_that_nothing_is_signed() -> None:
    said = "4 events are consistent; the record has not ended, so nothing is signed"
    assert found(going_on()) == (True, None, said)


def test_a_run_without_a_record_has_none() -> None:
    run = make_run()
    RunHead.objects.filter(pk=run.number).delete()
    assert found(run) == (False, None, "the run has no record")


def test_a_record_that_was_removed_says_when() -> None:
    run = make_run()
    record(run)
    RunHead.objects.filter(pk=run.number).update(
        removed_at=datetime.datetime(2026, 5, 4, tzinfo=datetime.UTC)
    )
    assert found(run) == (False, None, "the record was removed on 2026-05-04")


@pytest.mark.parametrize(
    ("statement", "first_bad", "message"),
    [
        (
            "UPDATE run_checkpoint SET chain_head = '\\x00' WHERE run_number = %s AND sequence = 3",
            3,
            "event 3: the checkpoint there is not where the chain stands",
        ),
        (
            "UPDATE run_checkpoint SET sequence = 5 WHERE run_number = %s AND sequence = 3",
            7,
            "event 7: the checkpoint there is not where the chain stands",
        ),
        (
            "UPDATE run_loss SET position = 2 WHERE run_number = %s",
            None,
            "loss spans are missing",
        ),
        (
            "UPDATE run_loss SET from_sequence = NULL WHERE run_number = %s",
            4,
            "event 4: missing up to 6, and no loss span declares it",
        ),
        (
            "UPDATE run_loss SET to_sequence = NULL WHERE run_number = %s",
            4,
            "event 4: missing up to 6, and no loss span declares it",
        ),
        (
            "UPDATE run_loss SET kind = 'dropped_event' WHERE run_number = %s",
            4,
            "event 4: missing up to 6, and no loss span declares it",
        ),
        (
            "UPDATE run_head SET last_sequence = 8 WHERE run_number = %s",
            8,
            "event 8: missing: the record goes to 8",
        ),
        (
            "UPDATE run_head SET event_count = 5 WHERE run_number = %s",
            7,
            "event 7: the chain does not end where the head says",
        ),
        (
            "UPDATE run_head SET chain_head = '\\x00' WHERE run_number = %s",
            7,
            "event 7: the chain does not end where the head says",
        ),
        (
            "UPDATE run_process SET pid = 1 WHERE run_number = %s",
            2,
            "event 2: process 1 is not listed as it tells",
        ),
        (
            "UPDATE run_process SET parent_number = 1 WHERE run_number = %s",
            2,
            "event 2: process 1 is not listed as it tells",
        ),
        (
            "UPDATE run_process SET exit_code = 1 WHERE run_number = %s",
            None,
            "the end of process 1 is not as it tells",
        ),
        (
            "DELETE FROM run_process WHERE run_number = %s",
            2,
            "event 2: tells of process 1, which is not listed",
        ),
    ],
)
def test_each_thing_that_does_not_fit_is_told_with_its_place(
    statement: str, first_bad: int | None, message: str
) -> None:
    run = going_on()
    change(statement, run)
    assert found(run) == (False, first_bad, message)


def test_what_was_appended_since_the_head_was_read_does_not_count() -> None:
    run = going_on()
    RunCheckpoint.objects.create(run_number=run.number, sequence=8, chain_head=b"later")
    RunLoss.objects.create(
        run_number=run.number, position=2, kind="early_close", reason="", detected_via="gap"
    )
    assert found(run)[0]


@pytest.mark.django_db(transaction=True)
def test_processes_that_start_and_end_while_it_is_checked_are_no_faults() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    first = source.process()
    source.append()
    source.exited(first)
    source.exited(source.process(), code=1)
    appended: list[int] = []

    def append() -> None:
        try:
            appended.append(source.append().events)
        finally:
            connection.close()

    def append_before(execute: Any, sql: str, *rest: Any) -> Any:
        if " FROM run_event " in sql and not appended:
            other = threading.Thread(target=append)
            other.start()
            other.join()
        return execute(sql, *rest)

    with connection.execute_wrapper(append_before):
        verdict = found(run)
    assert appended == [3]
    assert verdict[0], verdict[2]
    assert "2 events are consistent" in verdict[2]
    assert found(run)[0]


def test_a_loss_span_that_does_not_say_what_is_missing_declares_nothing() -> None:
    run = going_on()
    for position, (first, last) in enumerate([(None, 6), (4, None), (None, 5), (3, None)], 2):
        RunLoss.objects.create(
            run_number=run.number,
            position=position,
            kind="sequence_gap",
            from_sequence=first,
            to_sequence=last,
            reason="",
            detected_via="gap",
        )
    RunHead.objects.filter(pk=run.number).update(loss_count=5)
    assert found(run)[0]


def test_a_process_of_which_only_the_end_is_told_is_listed_as_far_as_it_is_known() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.exited(2)
    source.append()
    assert found(run)[0]
    change("UPDATE run_process SET pid = 1 WHERE run_number = %s", run)
    assert found(run) == (False, None, "process 2 is not listed as it tells")
    change("UPDATE run_process SET pid = NULL, exit_code = 1 WHERE run_number = %s", run)
    assert found(run) == (False, 2, "event 2: the end of process 2 is not as it tells")


def test_parents_are_those_that_events_tell_where_they_can_be_told() -> None:
    run = make_run()
    for _ in range(2):
        source = Source(run)
        source.open()
        source.started()
        source.process(["sleep"], leader=False, parent=source.process(["sh"]))
        source.append()
        assert found(run)[0]


def test_a_process_of_which_no_event_tells_is_a_fault() -> None:
    run = going_on()
    RunProcess.objects.create(run_number=run.number, process_number=2, leader=False)
    assert found(run) == (False, None, "process 2 is in no event")


@pytest.mark.parametrize(
    ("statement", "first_bad", "message"),
    [
        (
            "UPDATE run_change SET position = 2 WHERE run_number = %s",
            None,
            "change 2 is in no event",
        ),
        (
            "UPDATE run_change SET patch = 'x' WHERE run_number = %s",
            2,
            "event 2: change 1 is not listed as it tells",
        ),
        (
            "DELETE FROM run_change WHERE run_number = %s",
            2,
            "event 2: tells of change 1, which is not listed",
        ),
    ],
)
def test_each_change_is_listed_as_its_event_tells(
    statement: str, first_bad: int | None, message: str
) -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    told = {"position": 1, "path": "a", "change": "added"}
    source.event(Kind.FILE_DIFF_ENTRY, told, body=b"patch")
    source.append()
    assert found(run)[0]
    change(statement, run)
    assert found(run) == (False, first_bad, message)


def test_a_checkpoint_behind_the_last_event_says_that_some_are_missing() -> None:
    run = make_run()
    record(run)
    change("DELETE FROM run_event WHERE run_number = %s AND sequence = 6", run)
    assert found(run) == (False, 6, "event 6: missing: there is a checkpoint at 6")


def test_an_event_behind_a_sealed_record_is_told_from_the_heads_place() -> None:
    run = make_run()
    record(run)
    change("UPDATE run_head SET last_sequence = 5, event_count = 5 WHERE run_number = %s", run)
    change("DELETE FROM run_checkpoint WHERE run_number = %s", run)
    assert found(run) == (False, 6, "event 6: is not the record's: it ended before")


def test_a_seal_without_its_moment_is_a_fault() -> None:
    run = make_run()
    record(run)
    RunHead.objects.filter(pk=run.number).update(sealed_at=None)
    why = "event 6: the record has ended without a seal, or has a seal without having ended"
    assert found(run) == (False, 6, why)


def test_the_key_that_is_given_has_to_have_signed() -> None:
    run = make_run()
    record(run)
    run.refresh_from_db()
    assert verify_run(run, public_key=seal.public_key()).ok
    given = signatures.public_key_of(bytes(range(32)))
    verdict = verify_run(run, public_key=given)
    assert not verdict.ok
    assert "signed with another key" in verdict.message


def test_a_loss_span_more_than_was_sealed_is_a_fault() -> None:
    run = make_run()
    record(run)
    RunLoss.objects.create(
        run_number=run.number, position=9, kind="early_close", reason="", detected_via="gap"
    )
    assert found(run) == (False, None, "there are more loss spans than the record has")


def test_what_the_head_says_of_streams_is_sealed_as_well() -> None:
    run = make_run()
    record(run)
    RunHead.objects.filter(pk=run.number).update(stream_bytes={"1/2": 1})
    assert found(run) == (False, None, "the head is not as it was sealed")


def test_the_moment_of_the_seal_is_sealed() -> None:
    run = make_run()
    record(run)
    assert found(run)[0]
    RunHead.objects.filter(pk=run.number).update(sealed_at=Now())
    assert found(run) == (False, None, "the head is not as it was sealed")
