"""Starts and builds have slots of their own, and a job that waits for one holds nothing."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from builds.pipeline.job_slots import BuildSlotNeeded, JobSlots, Lane
from builds.pipeline.job_state import JobState
from tests.conftest import OWNER, Api
from tests.factories import LEASE, claim, make_job, make_worker
from tests.support.waiting import LONG_WAIT
from workspaces.models import BuildJob, LeaseLost, Sandbox, Workspace

FOREVER = timedelta(hours=1)


def never() -> bool:
    return False


def waiting_job(owner: str = OWNER, *, queued: int = 0) -> BuildJob:
    """Return a job that waits for a build slot, queued so many seconds ago."""
    job = make_job(queued_at=Now() - timedelta(seconds=queued))
    Workspace.objects.filter(pk=job.attempt.workspace_id).update(owner_user_id=owner)
    Sandbox.objects.filter(pk=job.attempt.sandbox_id).update(owner_user_id=owner)
    assert BuildJob.objects.wait_for_build_slot(claim(job).fence)
    return BuildJob.objects.get(pk=job.pk)


def next_build(worker_id: str = "worker-b") -> uuid.UUID | None:
    row = BuildJob.objects.claim_build(worker_id=worker_id, lease=LEASE)
    return None if row is None else row.pk


# ---------------------------------------------------------------- slots


def test_each_lane_has_slots_of_its_own() -> None:
    slots = JobSlots(start=1, build=1)
    start = slots.try_acquire(Lane.START)
    assert start is not None
    assert slots.try_acquire(Lane.START) is None

    start.require_build()

    assert start.lane is Lane.BUILD
    assert slots.usage() == {
        "start": {"capacity": 1, "in_use": 0},
        "build": {"capacity": 1, "in_use": 1},
    }


def test_a_job_without_a_build_slot_keeps_its_start_slot_until_it_is_released() -> None:
    slots = JobSlots(start=2, build=1)
    first, second = slots.try_acquire(Lane.START), slots.try_acquire(Lane.START)
    assert first is not None
    assert second is not None
    first.require_build()

    with pytest.raises(BuildSlotNeeded):
        second.require_build()

    assert second.release() is Lane.START
    assert second.release() is None
    assert slots.free(Lane.START) == 2


def test_a_job_that_has_started_gets_no_build_slot_any_more() -> None:
    slot = JobSlots(start=1, build=1).try_acquire(Lane.START)
    assert slot is not None
    slot.release()
    with pytest.raises(BuildSlotNeeded):
        slot.require_build()


def test_whoever_waits_for_a_slot_gets_the_one_that_is_released() -> None:
    slots = JobSlots(start=1, build=1)
    first = slots.try_acquire(Lane.START)
    assert first is not None
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(slots.acquire(Lane.START, stopped=never)))
    thread.start()
    first.release()
    thread.join(LONG_WAIT)
    assert got != [None]
    assert len(got) == 1
    assert slots.acquire(Lane.START, stopped=lambda: True) is None


# ---------------------------------------------------------------- rows


@pytest.mark.django_db
def test_a_job_that_waits_for_a_build_slot_holds_nothing_and_has_lost_no_try() -> None:
    job = make_job()
    state = JobState(claim(job))

    state.wait_for_build_slot()

    row = BuildJob.objects.get(pk=job.pk)
    assert (row.status, row.lane, row.worker_id, row.lease_expires_at) == (
        "queued",
        "build",
        "",
        None,
    )
    assert (row.attempt_count, row.max_attempts) == (1, 4)
    with pytest.raises(LeaseLost):
        state.require_lease()
    with pytest.raises(LeaseLost):
        state.wait_for_build_slot()


@pytest.mark.django_db
def test_a_cancelled_job_does_not_wait_for_a_build_slot() -> None:
    job = make_job()
    state = JobState(claim(job))
    BuildJob.objects.filter(pk=job.pk).update(
        status="cancelled", finished_at=Now(), lease_expires_at=None
    )
    with pytest.raises(LeaseLost):
        state.wait_for_build_slot()


@pytest.mark.django_db
def test_the_owner_with_the_fewest_builds_under_way_is_next_and_then_the_oldest_job() -> None:
    busy = [waiting_job("usr_busy", queued=100 - at) for at in range(3)]
    other = waiting_job("usr_other", queued=10)

    assert next_build() == busy[0].pk
    assert next_build() == other.pk
    assert next_build() == busy[1].pk
    assert next_build() == busy[2].pk
    assert next_build() is None


@pytest.mark.django_db
def test_a_sweeper_that_looks_for_lost_messages_leaves_jobs_that_wait_for_a_build_slot() -> None:
    job = waiting_job(queued=3600)
    assert not BuildJob.objects.overdue(overdue=timedelta(seconds=1)).filter(pk=job.pk).exists()


@pytest.mark.django_db
def test_a_claimed_build_is_running_under_a_new_fence() -> None:
    job = waiting_job()
    assert next_build("worker-b") == job.pk
    row = BuildJob.objects.get(pk=job.pk)
    assert (row.status, row.worker_id, row.attempt_count) == ("running", "worker-b", 2)


@pytest.mark.django_db
def test_a_workspace_says_that_it_waits_for_a_build_slot(api: Api) -> None:
    make_worker("worker-a")
    job = make_job()
    state = JobState(claim(job))
    state.start()
    state.wait_for_build_slot()

    shown = api.get(f"/v1/sandboxes/{job.attempt.sandbox_id}").body

    assert shown["status"] == "running"
    assert shown["reason"]["code"] == "waiting-for-build-slot"
    assert "WORKSPACE_BUILD_QUEUE_PREFETCH" in shown["reason"]["next"]
