"""Heartbeats: who is alive, what a worker does, and how far a stale heartbeat is to be believed."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from controlplane.work.failure_detector import FailureDetector
from controlplane.work.models import Heartbeat, heartbeat_stale
from tests.factories import make_worker

STALE = timedelta(minutes=20)


class Clock:
    """Seconds since boot, as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def clock_gettime(self, clock: int) -> float:
        """Answer for the one clock that goes on while a machine sleeps."""
        assert clock == time.CLOCK_BOOTTIME
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the machine."""
    made = Clock()
    monkeypatch.setattr(time, "clock_gettime", made.clock_gettime)
    return made


def beat(worker_id: str, **values: object) -> Heartbeat:
    """Write a heartbeat and return the row."""
    given = {"kind": Heartbeat.Kind.RUN, "hostname": "host", "pid": 7, "capacity": 3, **values}
    Heartbeat.objects.beat(worker_id, **given)  # type: ignore[arg-type] # some of its arguments
    return Heartbeat.objects.get(pk=worker_id)


@pytest.mark.django_db
def test_who_was_seen_lately_is_alive() -> None:
    make_worker("alive", seen=STALE / 2)
    make_worker("dead", seen=2 * STALE)

    assert [row.worker_id for row in Heartbeat.objects.alive(stale=STALE)] == ["alive"]


def test_the_operator_says_when_a_worker_is_taken_for_dead(settings: Any) -> None:
    settings.WORKER_HEARTBEAT_STALE_MS = 1_500
    assert heartbeat_stale() == timedelta(seconds=1.5)


@pytest.mark.django_db
def test_workers_are_kept_by_what_they_do() -> None:
    beat("builds", kind=Heartbeat.Kind.BUILD)
    beat("runs")

    assert [row.worker_id for row in Heartbeat.objects.build()] == ["builds"]
    assert [row.worker_id for row in Heartbeat.objects.run()] == ["runs"]


@pytest.mark.django_db
def test_the_first_heartbeat_registers_a_worker_with_everything_it_says() -> None:
    slots = {"start": {"capacity": 2, "in_use": 1}}

    row = beat("worker", draining=True, engine_id="engine", engine_name="second", slots=slots)

    assert (row.kind, row.hostname, row.pid, row.capacity) == ("run", "host", 7, 3)
    assert (row.draining, row.engine_id, row.slots) == (True, "engine", slots)
    assert row.engine_name == "second"


@pytest.mark.django_db
def test_a_later_heartbeat_tells_what_changes_and_leaves_what_it_is() -> None:
    first = beat("worker")
    assert (first.draining, first.engine_id, first.slots) == (False, "", {})
    slots = {"start": {"capacity": 2, "in_use": 2}}

    row = beat("worker", pid=8, hostname="x", draining=True, engine_id="engine", slots=slots)

    assert (row.draining, row.engine_id, row.slots) == (True, "engine", slots)
    assert beat("worker", engine_name="second").engine_name == "second"
    assert (row.pid, row.hostname, row.started_at) == (7, "host", first.started_at)
    assert row.seen_at > first.seen_at


@pytest.mark.django_db
def test_the_slots_of_live_workers_that_are_not_draining_are_summed_by_engine_and_kind() -> None:
    def slots(capacity: int, in_use: int) -> dict[str, object]:
        return {"start": {"capacity": capacity, "in_use": in_use}}

    beat("first", slots={**slots(4, 1), "build": {"capacity": 1, "in_use": 0}})
    beat("second", slots=slots(8, 2))
    beat("elsewhere", slots=slots(64, 5), engine_name="other")
    beat("draining", slots=slots(16, 3), draining=True)
    beat("dead", slots=slots(32, 4))
    Heartbeat.objects.filter(pk="dead").update(seen_at="2020-01-01T00:00:00Z")

    found = Heartbeat.objects.slots_by_engine(stale=STALE)
    assert found == {
        "": {
            "start": {"capacity": 12, "in_use": 3},
            "build": {"capacity": 1, "in_use": 0},
        },
        "other": {"start": {"capacity": 64, "in_use": 5}},
    }
    # A worker without an engine serves them all; what is on none yet is anybody's.
    assert found.of("other", "start") == found.of("", "start") == {"capacity": 76, "in_use": 8}
    assert found.of("third", "start") == {"capacity": 12, "in_use": 3}
    assert found.of("other", "boot") is None


@pytest.mark.django_db
def test_rows_of_workers_that_died_long_ago_are_deleted_and_counted() -> None:
    for name in ("old", "older"):
        make_worker(name, seen=timedelta(hours=25))
    make_worker("young", seen=timedelta(hours=23))

    assert Heartbeat.objects.forget() == 2

    assert [row.worker_id for row in Heartbeat.objects.all()] == ["young"]


def test_nobody_is_taken_for_dead_before_a_live_worker_has_had_two_intervals(clock: Clock) -> None:
    detector = FailureDetector(timedelta(seconds=5))
    clock.now += 9.9
    detector.heartbeat_written()
    assert not detector.is_reliable()
    clock.now += 0.2
    assert detector.is_reliable()


def test_while_our_own_heartbeat_is_stale_nobody_elses_tells_anything(clock: Clock) -> None:
    detector = FailureDetector(timedelta(seconds=5))
    clock.now += 10
    detector.heartbeat_written()
    clock.now += 10
    assert detector.seconds_since_heartbeat == 10
    assert detector.is_reliable()
    clock.now += 0.1
    assert not detector.is_reliable()


def test_after_a_pause_of_our_own_all_others_get_two_intervals_again(clock: Clock) -> None:
    detector = FailureDetector(timedelta(seconds=5))
    clock.now += 100
    detector.heartbeat_written()
    assert not detector.is_reliable()
    clock.now += 9.9
    assert not detector.is_reliable()
    clock.now += 0.1
    assert detector.is_reliable()


def test_a_heartbeat_that_comes_in_time_does_not_hold_up_the_judgement(clock: Clock) -> None:
    detector = FailureDetector(timedelta(seconds=5))
    clock.now += 10
    detector.heartbeat_written()
    assert detector.is_reliable()
