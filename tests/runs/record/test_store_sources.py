"""Sources that follow each other, and records that the control plane has to end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.utils import timezone

from controlplane.work.leases import Fence, LeaseLost
from runs.agent.record.frames import Confidence, Event, Kind, Method, Stream
from runs.models import Run, RunCheckpoint, RunEvent, RunHead, RunLoss, RunProcess
from runs.record import store
from runs.record.ingest.meta import INT64_MAX
from runs.record.verify import verify_run
from tests.runs.record_factory import Source, make_run, record

pytestmark = pytest.mark.django_db


def losses_of(run: Run) -> list[tuple[str, int | None, str]]:
    spans = RunLoss.objects.filter(run_number=run.number).order_by("position")
    return list(spans.values_list("kind", "from_sequence", "reason"))


def last_meta(run: Run) -> dict[str, Any]:
    event = RunEvent.objects.filter(run_number=run.number).order_by("-sequence")[0]
    assert event.kind == Kind.RECORD_SEALED
    told: dict[str, Any] = json.loads(bytes(event.meta))
    return told


def built(run: Run, *, in_order: bool = True) -> Source:
    """The source of a build with two steps, told to its end unless it broke off."""
    source = Source(run, "build:1:1")
    source.open()
    source.started(mode="build")
    for text in (b"one\n", b"two\n"):
        process = source.process()
        source.output(process, text)
        source.exited(process)
    if in_order:
        source.event(Kind.RUNTIME_STATE_CHANGED, {"state": "starting", "totals": {"streams": []}})
    source.append()
    return source


def test_a_source_goes_on_where_the_last_one_ended() -> None:
    run = make_run(mode="boot")
    first = built(run)
    spool = Source(run)
    assert spool.open() == 0
    spool.started()
    process = spool.process(["init"])
    spool.output(process, b"three\n")
    spool.process(["child"], leader=False, parent=process)
    assert spool.append().last_sequence == 4
    spool.sealed(streams=[{"process": process, "stream": "stdout", "bytes": 6, "dropped": 0}])
    spool.append()
    numbers = RunEvent.objects.filter(run_number=run.number).values_list("sequence", flat=True)
    assert sorted(numbers) == list(range(1, len(first.contents) + len(spool.contents) + 1))
    processes = RunProcess.objects.filter(run_number=run.number).order_by("process_number")
    assert [(each.process_number, each.parent_number) for each in processes] == [
        (1, None),
        (2, None),
        (3, None),
        (4, 3),
    ]
    assert RunHead.objects.get(pk=run.number).stream_bytes == {"1/2": 4, "2/2": 4, "3/2": 6}
    assert losses_of(run) == []
    assert verify_run(run).ok


def test_the_end_of_a_source_that_never_came_is_a_loss() -> None:
    run = make_run(mode="boot")
    first = built(run, in_order=False)
    spool = Source(run)
    spool.open()
    assert losses_of(run) == [
        ("early_close", len(first.contents) + 1, "the next source began"),
    ]
    with pytest.raises(store.SourceMismatch):
        first.append()
    with pytest.raises(store.SourceMismatch):
        first.open()


def test_a_later_source_that_has_ended_tells_its_last_batch_again_and_nothing_new() -> None:
    run = make_run(mode="boot")
    built(run)
    spool = Source(run)
    spool.open()
    spool.started()
    spool.sealed()
    spool.append()
    again = store.append(run.number, spool.source_id, spool.contents)
    assert again == store.Appended(2, True, 0)
    spool.output(1, b"late")
    with pytest.raises(store.RecordSealed):
        spool.append()


def test_a_source_that_had_ended_may_go_on() -> None:
    run = make_run(mode="boot")
    spool = Source(run)
    spool.open()
    spool.started()
    spool.event(Kind.RUNTIME_STATE_CHANGED, {"state": "stopped", "totals": {}})
    spool.append()
    assert RunHead.objects.get(pk=run.number).source_ended
    spool.event(Kind.RUNTIME_STATE_CHANGED, {"state": "starting"})
    spool.append()
    assert not RunHead.objects.get(pk=run.number).source_ended


def test_nothing_is_appended_to_a_source_that_nobody_opened() -> None:
    run = make_run()
    source = Source(run)
    source.started()
    with pytest.raises(store.SourceMismatch):
        source.append()


def test_a_record_whose_source_died_is_ended_with_what_is_known() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.output(source.process(), b"some", stream=Stream.STDERR)
    source.append()
    assert store.close_early(run.number, reason="container-gone", detail="it was removed")
    run.refresh_from_db()
    assert (run.status, run.error_code) == ("failed", "record-ended-early")
    assert run.error_message == "it was removed"
    assert losses_of(run) == [("early_close", 4, "container-gone: it was removed")]
    assert last_meta(run) == {
        "by": "control-plane",
        "reason": "container-gone",
        "exit": None,
        "events": 4,
        "processes": 1,
        "streams": [{"process": 1, "stream": "stderr", "bytes": 4}],
        "detail": "it was removed",
    }
    assert store.close_early(run.number, reason="container-gone", detail="again") is False
    assert store.end_in_order(run.number, reason="ended") is False
    assert len(losses_of(run)) == 1
    for attempt in (source.append, source.open):
        source.output(1, b"late")
        with pytest.raises(store.RecordSealed):
            attempt()


def test_the_recorded_exit_decides_even_when_the_end_of_the_record_is_lost() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.exited(source.process(), code=0)
    source.append()
    store.close_early(run.number, reason="recorder-lost", detail="killed")
    run.refresh_from_db()
    assert (run.status, run.exit_code, run.error_code) == ("completed", 0, "")
    assert last_meta(run)["exit"] == {"code": 0, "signal": None, "reason": "exited"}


def test_what_a_recorder_took_with_it_is_a_loss_and_the_recorded_exit_still_counts() -> None:
    for code, status in ((None, "failed"), (0, "completed")):
        run = make_run()
        source = Source(run)
        source.open()
        source.started()
        process = source.process()
        if code is not None:
            source.exited(process, code=code)
        source.sealed(code=None, reason="lost", because="recorder-lost")
        source.append()
        run.refresh_from_db()
        assert run.status == status
        assert [kind for kind, *_ in losses_of(run)] == ["early_close"]
        assert verify_run(run).ok


def test_a_run_that_was_never_started_has_no_loss() -> None:
    run = make_run(status=Run.Status.QUEUED)
    assert store.close_early(
        run.number, reason="not-started", detail="", status=Run.Status.CANCELLED
    )
    run.refresh_from_db()
    assert (run.status, run.error_code, run.error_message) == ("cancelled", "", "")
    assert losses_of(run) == []
    assert verify_run(run).ok


def test_a_build_that_failed_ends_its_record_in_order() -> None:
    run = make_run(mode="boot")
    built(run, in_order=False)
    assert store.end_in_order(
        run.number,
        reason="build-failed",
        status=Run.Status.FAILED,
        error_code="build-failed",
        error_message="step 2",
    )
    run.refresh_from_db()
    assert (run.status, run.error_code, run.error_message) == ("failed", "build-failed", "step 2")
    assert losses_of(run) == []
    assert not store.end_in_order(run.number, reason="build-failed", status=Run.Status.FAILED)
    assert verify_run(run).ok


def test_an_end_in_order_takes_the_status_from_the_exit() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.append()
    store.end_in_order(
        run.number, reason="ended", exit={"code": 4, "signal": None, "reason": "exited"}
    )
    run.refresh_from_db()
    assert (run.status, run.exit_code, run.error_code) == ("failed", 4, "run-exited")


def test_what_comes_behind_the_end_is_not_stored() -> None:
    run = make_run()
    source = record(run)
    other = make_run()
    twin = Source(other)
    twin.open()
    twin.started()
    twin.sealed()
    twin.output(1, b"behind")
    assert twin.append() == store.Appended(2, True, 2)
    with pytest.raises(store.RecordSealed):
        store.open_source(run.number, "another")
    assert source.open() == len(source.contents)


def own(number: int, kind: int = Kind.EGRESS_DECIDED) -> list[Event]:
    """Return so many events that the control plane tells."""
    told = (kind, Method.PROXY, Confidence.OBSERVED, 0, 0, 0, b"{}", b"")
    return [Event(1, 7, 8, *told) for _ in range(number)]


def tell(run: Run, *events: Event) -> None:
    """Store events of the control plane in the record of a run."""
    with transaction.atomic():
        store.append_own(RunHead.objects.select_for_update().get(pk=run.number), events)


def test_what_the_control_plane_tells_is_numbered_between_the_events_of_a_source() -> None:
    run = make_run(mode="boot")
    built(run)
    spool = Source(run)
    spool.open()
    spool.started()
    spool.append()
    before = RunHead.objects.get(pk=run.number).last_sequence

    tell(run, *own(2))
    process = spool.process(["init"])
    spool.output(process, b"three\n")
    stored = spool.append()

    assert stored.last_sequence == 3
    kinds = RunEvent.objects.filter(run_number=run.number, sequence__gte=before)
    assert list(kinds.order_by("sequence").values_list("sequence", "kind")) == [
        (before, Kind.RECORD_STARTED),
        (before + 1, Kind.EGRESS_DECIDED),
        (before + 2, Kind.EGRESS_DECIDED),
        (before + 3, Kind.PROCESS_STARTED),
        (before + 4, Kind.IO_CHUNK),
    ]
    assert spool.open() == 3
    spool.sealed()
    assert spool.append().sealed
    assert losses_of(run) == []
    assert verify_run(run).ok


@pytest.mark.parametrize("in_order", [True, False])
def test_what_the_control_plane_tells_neither_ends_a_source_nor_lets_it_go_on(
    in_order: bool,
) -> None:
    run = make_run(mode="boot")
    first = built(run, in_order=in_order)
    tell(run, *own(1))
    Source(run).open()
    lost = ("early_close", len(first.contents) + 2, "the next source began")
    assert losses_of(run) == ([] if in_order else [lost])


def test_where_the_control_plane_has_nothing_to_tell_nothing_is_stored() -> None:
    run = make_run(mode="boot")
    built(run)
    before = RunCheckpoint.objects.filter(run_number=run.number).count()
    tell(run)
    assert RunCheckpoint.objects.filter(run_number=run.number).count() == before


def test_what_the_control_plane_tells_leaves_room_for_the_end() -> None:
    run = make_run(mode="boot")
    last = INT64_MAX - 3
    RunHead.objects.filter(pk=run.number).update(last_sequence=last, source_base=last)

    tell(run, *own(1))
    with pytest.raises(DatabaseError, match="no room"):
        tell(run, *own(2))
    assert RunHead.objects.get(pk=run.number).last_sequence == INT64_MAX - 2
    tell(run, *own(1))
    assert store.end_in_order(run.number, reason="ended")
    assert RunHead.objects.get(pk=run.number).last_sequence == INT64_MAX


def test_nothing_is_stored_behind_a_head_that_is_no_more() -> None:
    run = make_run(mode="boot")
    head = RunHead.objects.get(pk=run.number)
    RunHead.objects.filter(pk=run.number).delete()
    with pytest.raises(DatabaseError), transaction.atomic():
        store.append_own(head, own(1))
    assert not RunEvent.objects.filter(run_number=run.number).exists()


def sealed_source(run: Run) -> Source:
    source = Source(run)
    source.started()
    source.exited(source.process())
    source.sealed()
    return source


def test_a_source_is_opened_with_its_first_events() -> None:
    run = make_run()
    source = sealed_source(run)
    first, rest = source.contents[:2], source.contents[2:]
    stored = store.append(run.number, source.source_id, first, opening=True)
    assert (stored.last_sequence, stored.sealed, stored.events) == (2, False, 2)
    # Told again, as after a lost answer, nothing is stored twice.
    assert store.append(run.number, source.source_id, first, opening=True).events == 0
    assert store.append(run.number, source.source_id, rest, opening=True).sealed
    run.refresh_from_db()
    assert (run.status, verify_run(run).ok) == ("completed", True)
    assert losses_of(run) == []


def test_a_source_whose_first_events_are_none_is_open_nevertheless() -> None:
    run = make_run()
    source = Source(run)
    with pytest.raises(store.SourceRefused):
        store.append(run.number, source.source_id, [b"no event"], opening=True)
    head = RunHead.objects.get(pk=run.number)
    assert (head.source_id, head.source_ended, head.event_count) == (source.source_id, False, 0)


def test_a_source_that_another_one_followed_is_not_opened_by_its_events() -> None:
    run = make_run()
    late, source = sealed_source(run), Source(run)
    store.open_source(run.number, late.source_id)
    source.open()
    with pytest.raises(store.SourceMismatch):
        store.append(run.number, late.source_id, late.contents, opening=True)
    assert not RunEvent.objects.filter(run_number=run.number).exists()


@pytest.mark.parametrize(
    "lost",
    [
        {"worker_id": "another"},
        {"claim_count": 2},
        {"lease_expires_at": None},
    ],
)
def test_nothing_is_stored_for_a_worker_that_lost_its_lease(lost: dict[str, Any]) -> None:
    held = {"worker_id": "one", "claim_count": 1, "lease_expires_at": timezone.now()}
    run = make_run(**{**held, **lost})
    source, fence = sealed_source(run), Fence(run.pk, "one", 1)
    with pytest.raises(LeaseLost):
        store.append(run.number, source.source_id, source.contents, fence=fence, opening=True)
    head = RunHead.objects.get(pk=run.number)
    assert (head.source_id, head.event_count) == ("", 0)
    Run.objects.filter(pk=run.pk).update(**held)
    appended = store.append(
        run.number, source.source_id, source.contents, fence=fence, opening=True
    )
    assert appended.sealed
