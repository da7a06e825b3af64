"""What the store writes at the beginning and the end of a record, one guard at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.utils import timezone

from runs.agent.record.frames import Confidence, Event, Kind, Method
from runs.models import PARTITION_RUNS, Run, RunEvent, RunHead, RunLoss, RunOwner
from runs.record import partitions, store
from runs.record.egress_endings import NOT_SETTLED
from runs.services import Report, update_reported
from tests.runs.record_factory import Source, make_run
from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.decided.decided_rows import with_policy

EXITED: dict[str, Any] = {"code": 3, "signal": None, "reason": "exited"}
GOES_ON = ("running", None, "", "")


def begun(*, left: dict[str, Any] | None = None) -> tuple[Run, Source]:
    """Return a run whose record has begun; with ``left`` its leader has ended so."""
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    process = source.process()
    if left is not None:
        source.exited(process, **left)
    source.append()
    return run, source


def ended(run: Run) -> tuple[str, int | None, str, str]:
    """How a run ended."""
    run.refresh_from_db()
    return run.status, run.exit_code, run.error_code, run.error_message


def last_event(run: Run) -> RunEvent:
    """Return the last event of a record."""
    return RunEvent.objects.filter(run_number=run.number).order_by("sequence").reverse()[0]


def part_of(run: Run) -> int:
    return run.number // PARTITION_RUNS


def remove_partition(run: Run) -> None:
    """Take the place of a run's events away, as if it had never been made."""
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {partitions.name_of(part_of(run))}")


def begins(run: Run) -> None:
    source = Source(run)
    source.open()
    source.started()
    assert source.append().events == 1


def begins_with_its_events(run: Run) -> None:
    source = Source(run)
    source.started()
    assert store.append(run.number, source.source_id, source.contents, opening=True).events == 1


def ends(run: Run) -> None:
    assert store.end_in_order(run.number, reason="ended")


def is_told_by_the_control_plane(run: Run) -> None:
    told = (Kind.EGRESS_DECIDED, Method.PROXY, Confidence.OBSERVED, 0, 0, 0, b"{}", b"")
    with transaction.atomic():
        head = RunHead.objects.select_for_update().get(pk=run.number)
        store.append_own(head, [Event(1, 7, 8, *told)])


@pytest.mark.django_db
@pytest.mark.parametrize(
    "write", [begins, begins_with_its_events, ends, is_told_by_the_control_plane]
)
def test_whatever_is_written_first_finds_room(write: Callable[[Run], None]) -> None:
    run = make_run()
    remove_partition(run)

    write(run)

    assert part_of(run) in partitions.partitions()
    assert RunEvent.objects.filter(run_number=run.number).count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("left", "given", "expected"),
    [
        (None, {}, ("failed", None, "record-ended-early", "gone away")),
        (None, {"error_code": "x", "error_message": "y"}, ("failed", None, "x", "y")),
        (EXITED, {}, ("failed", 3, "run-exited", "The command exited with 3.")),
        (EXITED, {"status": Run.Status.FAILED}, ("failed", 3, "run-exited", "gone away")),
        (
            EXITED,
            {"status": Run.Status.FAILED, "error_code": "x", "error_message": "y"},
            ("failed", 3, "x", "y"),
        ),
        (EXITED, {"status": Run.Status.CANCELLED}, ("cancelled", 3, "", "")),
        (None, {"status": Run.Status.COMPLETED}, ("completed", None, "", "")),
    ],
)
def test_an_early_end_takes_the_status_that_is_given_or_the_recorded_exit(
    left: dict[str, Any] | None,
    given: dict[str, Any],
    expected: tuple[str, int | None, str, str],
) -> None:
    run, _ = begun(left=left)
    other, _ = begun()

    assert store.close_early(run.number, reason="lost", detail="gone away", **given)

    assert ended(run) == expected
    assert ended(other) == GOES_ON
    told = json.loads(bytes(last_event(run).meta))
    assert (told["reason"], told["exit"], told["detail"]) == ("lost", left, "gone away")


@pytest.mark.django_db
def test_without_an_exit_the_reason_says_why_a_record_ended_early() -> None:
    run, source = begun()
    source.sealed(exit=None, because="recorder-lost")
    source.append()

    assert ended(run)[2:] == (
        "record-ended-early",
        "How the run ended is not known: its record ended early (recorder-lost).",
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("failed", 3, "run-exited", "The command exited with 3.")),
        (
            {"status": Run.Status.FAILED},
            ("failed", 3, "run-exited", "The command exited with 3."),
        ),
        (
            {"status": Run.Status.FAILED, "error_code": "x", "error_message": "y"},
            ("failed", 3, "x", "y"),
        ),
        ({"status": Run.Status.CANCELLED}, ("cancelled", 3, "", "")),
        (
            {"status": Run.Status.CANCELLED, "error_code": "x", "error_message": "y"},
            ("cancelled", 3, "x", "y"),
        ),
    ],
)
def test_an_end_in_order_takes_the_status_that_is_given_or_its_exit(
    given: dict[str, Any], expected: tuple[str, int | None, str, str]
) -> None:
    run, _ = begun()
    other, _ = begun()

    assert store.end_in_order(run.number, reason="ended", exit=EXITED, **given)

    assert ended(run) == expected
    assert ended(other) == GOES_ON
    told = json.loads(bytes(last_event(run).meta))
    assert (told["reason"], told["exit"]) == ("ended", EXITED)
    assert told.get("detail") == given.get("error_message")
    assert not RunLoss.objects.filter(run_number=run.number).exists() or not given


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("mode", "reason", "expected"),
    [
        ("boot", "stopped", ("completed", None, "", "")),
        (
            "boot",
            "build-failed",
            (
                "failed",
                None,
                "record-ended-early",
                "How the run ended is not known: its record ended early (build-failed).",
            ),
        ),
    ],
)
def test_an_end_in_order_without_status_and_exit_takes_the_status_from_its_reason(
    mode: str, reason: str, expected: tuple[str, int | None, str, str]
) -> None:
    run = make_run(mode=mode)

    assert store.end_in_order(run.number, reason=reason)

    assert ended(run) == expected


@pytest.mark.django_db
@pytest.mark.parametrize("end", ["by its source", "early", "in order"])
def test_an_end_that_did_not_wait_for_the_egress_proxy_says_so(end: str) -> None:
    _, run = with_policy("a proxy that does not answer")

    if end == "by its source":
        source = Source(run)
        source.open()
        source.sealed()
        assert source.append().sealed
    elif end == "early":
        assert store.close_early(run.number, reason="lost", detail="gone away")
    else:
        assert store.end_in_order(run.number, reason="ended")

    lost = RunLoss.objects.filter(run_number=run.number, reason=NOT_SETTLED)
    assert [(each.kind, each.detected_via) for each in lost] == [("dropped_event", "gap")]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("mode", "status"), [("one-shot", "completed"), ("interactive", "cancelled")]
)
def test_only_a_one_shot_run_is_settled_by_what_its_caller_knows_of_it(
    mode: str, status: str
) -> None:
    make_run()
    run = make_run(mode=mode)
    source = Source(run)
    source.open()
    source.started()
    source.sealed(because="stopped")
    # Somebody asks for the end, of which whoever stores the record knows nothing.
    Run.objects.filter(pk=run.pk).update(cancel_requested_at=timezone.now())

    store.append(run.number, source.source_id, source.contents, run=run)

    assert ended(run)[0] == status


@pytest.mark.django_db
def test_what_is_written_beforehand_is_stored_with_the_events_or_not_at_all() -> None:
    run, source = begun()
    source.output(1, b"x")

    def write() -> None:
        Run.objects.filter(pk=run.pk).update(error_message="beforehand")

    with pytest.raises(store.SourceMismatch):
        store.append(run.number, "another", source.contents, beforehand=write)
    assert ended(run) == GOES_ON
    stored = store.append(run.number, source.source_id, source.contents, beforehand=write)
    assert (stored.events, ended(run)) == (1, ("running", None, "", "beforehand"))


@pytest.mark.django_db
def test_what_is_missing_at_an_early_end_begins_behind_the_last_event() -> None:
    run, _ = begun()

    store.close_early(run.number, reason="lost", detail="gone away")

    loss = RunLoss.objects.get(run_number=run.number)
    assert (loss.kind, loss.detected_via, loss.from_sequence) == ("early_close", "gap", 3)
    assert (loss.to_sequence, loss.reason) == (None, "lost: gone away")


@pytest.mark.django_db
@pytest.mark.parametrize(("begun", "losses"), [(True, 1), (False, 0)])
def test_a_source_that_began_and_of_which_nothing_is_stored_is_a_loss(
    begun: bool, losses: int
) -> None:
    run = make_run()

    store.close_early(run.number, reason="lost", detail="", begun=begun)

    assert RunLoss.objects.filter(run_number=run.number).count() == losses


@pytest.mark.django_db
def test_the_end_that_the_control_plane_writes_is_an_event_of_no_process() -> None:
    run, _ = begun()
    before = time.time_ns() // 1000

    store.end_in_order(run.number, reason="ended")

    event = last_event(run)
    assert before <= event.wall_us <= time.time_ns() // 1000
    assert (event.sequence, event.kind) == (3, Kind.RECORD_SEALED)
    assert (event.method, event.confidence) == (Method.INTERNAL, Confidence.OBSERVED)
    assert (event.monotonic_ns, event.stream, event.stream_offset) == (0, 0, 0)
    assert event.process_number in (None, 0)
    assert bytes(event.body) == b""


@pytest.mark.django_db
def test_what_is_no_event_is_not_taken_for_stored_once_the_record_has_ended() -> None:
    run, source = begun()
    source.sealed()
    source.append()

    with pytest.raises(store.RecordSealed):
        store.append(run.number, source.source_id, [*source.contents, b"no event"])
    assert store.append(run.number, source.source_id, []) == store.Appended(3, True, 0)


@pytest.mark.django_db
@pytest.mark.parametrize("ended", [False, True])
def test_another_source_is_told_apart_from_one_that_came_too_late(ended: bool) -> None:
    run, source = begun()
    if ended:
        source.sealed()
        source.append()
    error = store.RecordSealed if ended else store.SourceMismatch

    with pytest.raises(error, match=str(run.number)):
        store.append(run.number, "another", [])


@pytest.mark.django_db(transaction=True)
def test_whoever_waits_is_told_of_each_batch_and_how_the_run_ended() -> None:
    with listening() as heard:
        run, source = begun()
        source.output(1, b"five\n")
        source.sealed(code=3)
        source.append()
        told = heard(2)

    assert store.CHANNEL == "run_events"
    ended = {
        "status": "failed",
        "exitCode": 3,
        "exitSignal": "",
        "errorCode": "run-exited",
        "errorMessage": "The command exited with 3.",
        "outputBytes": 5,
    }
    assert told == [
        {"runNumber": run.number, "lastSequence": 2, "sealed": False},
        {"runNumber": run.number, "lastSequence": 4, "sealed": True, "ended": ended},
    ]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("early", [True, False])
def test_an_end_that_the_control_plane_writes_is_announced_and_counted(early: bool) -> None:
    run, _ = begun()
    with listening() as heard:
        if early:
            assert store.close_early(run.number, reason="lost", detail="gone away")
        else:
            assert store.end_in_order(run.number, reason="ended")
        told = heard(1)

    assert told == [{"runNumber": run.number, "lastSequence": 3, "sealed": True}]
    head = RunHead.objects.get(pk=run.number)
    assert RunOwner.objects.get(pk=run.owner_user_id).sealed_bytes == head.stored_bytes > 0


@pytest.mark.django_db(transaction=True)
def test_what_the_control_plane_tells_is_announced_as_no_end() -> None:
    run, _ = begun()
    with listening() as heard:
        is_told_by_the_control_plane(run)
        told = heard(1)

    assert told == [{"runNumber": run.number, "lastSequence": 3, "sealed": False}]


@pytest.mark.django_db(transaction=True)
def test_no_end_is_announced_that_is_not_that_of_the_row() -> None:
    run, source = begun()
    Run.objects.filter(pk=run.pk).settle(Run.Status.CANCELLED)
    source.sealed()
    with listening() as heard:
        source.append()
        told = heard(1)

    assert told == [{"runNumber": run.number, "lastSequence": 3, "sealed": True}]
    run.refresh_from_db()
    assert run.status == Run.Status.CANCELLED


@pytest.mark.django_db(transaction=True)
def test_whoever_waits_is_told_of_the_end_of_a_run_without_a_record() -> None:
    run = make_run(status=Run.Status.QUEUED)
    Run.objects.filter(pk=run.pk).update(recorded=False)
    run.refresh_from_db()

    with listening() as heard:
        update_reported(run, Report(status=Run.Status.FAILED, error_message="It failed."))
        told = heard(1)

    assert told == [{"runNumber": run.number, "lastSequence": 0, "sealed": False}]


@contextmanager
def listening() -> Iterator[Callable[[int], list[Any]]]:
    """Yield what returns so many announcements that were made since then."""
    parameters = connection.get_connection_params()
    keys = ("dbname", "user", "password", "host", "port")
    chosen = {key: parameters[key] for key in keys if key in parameters}
    with psycopg.connect(**chosen, autocommit=True) as listener:
        listener.execute(f"LISTEN {store.CHANNEL}")

        def heard(number: int) -> list[Any]:
            told = listener.notifies(timeout=LONG_WAIT, stop_after=number)
            return [json.loads(each.payload) for each in told]

        yield heard
