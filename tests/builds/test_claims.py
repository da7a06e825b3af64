"""The claim, the lease and the fence of build jobs."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connections
from django.db.models.functions import Now

from builds import job_sweeper as sweeper
from controlplane.work.models import Heartbeat
from tests.factories import LEASE, claim, make_job, make_worker
from tests.support.locked_rows import locked
from workspaces.models import BuildJob, Fence, LeaseLost

EXPIRED = timedelta(seconds=-1)
STALE = timedelta(minutes=20)
OVERDUE = timedelta(minutes=10)


@pytest.mark.django_db
def test_a_claim_sets_everything_the_specification_names() -> None:
    job = make_job()

    claimed = claim(job)

    job.refresh_from_db()
    assert job.status == BuildJob.Status.RUNNING
    assert job.attempt_count == claimed.attempt_count == 1
    assert job.worker_id == "worker-a"
    assert job.claimed_at is not None
    assert job.started_at is not None
    assert job.lease_expires_at is not None
    assert job.lease_expires_at - job.claimed_at == LEASE
    assert claimed.fence == job.fence


@pytest.mark.django_db
def test_a_job_with_a_live_lease_is_not_claimable() -> None:
    job = make_job()
    claim(job)

    assert BuildJob.objects.claim(job.pk, worker_id="worker-b", lease=LEASE) is None


@pytest.mark.django_db
def test_an_expired_lease_is_claimed_again_and_keeps_the_first_start() -> None:
    job = make_job()
    claim(job, lease=EXPIRED)
    job.refresh_from_db()
    started_at = job.started_at

    again = claim(job, "worker-b")

    job.refresh_from_db()
    assert again.attempt_count == job.attempt_count == 2
    assert job.worker_id == "worker-b"
    assert job.started_at == started_at


@pytest.mark.django_db
@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_job_that_ended_is_not_claimable(status: str) -> None:
    job = make_job()
    BuildJob.objects.filter(pk=job.pk).update(
        status=status, error_message="it ended", finished_at=Now()
    )

    assert BuildJob.objects.claim(job.pk, worker_id="worker-a", lease=LEASE) is None


@pytest.mark.django_db
def test_a_published_job_whose_launch_was_lost_is_claimed_without_going_back_to_running() -> None:
    job = make_job()
    claim(job)
    BuildJob.objects.filter(pk=job.pk).update(
        status="succeeded",
        published_digest="sha256:" + "0" * 64,
        finished_at=Now(),
        lease_expires_at=Now() - timedelta(seconds=1),
    )

    again = claim(job, "worker-b")

    job.refresh_from_db()
    assert again.status == job.status == BuildJob.Status.SUCCEEDED
    assert job.attempt_count == 2


@pytest.mark.django_db(transaction=True)
def test_of_twelve_claimers_one_wins() -> None:
    job = make_job()
    barrier = threading.Barrier(12)
    winners: list[str] = []

    def claimer(name: str) -> None:
        try:
            barrier.wait()
            if BuildJob.objects.claim(job.pk, worker_id=name, lease=LEASE):
                winners.append(name)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=claimer, args=(f"worker-{n}",)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    job.refresh_from_db()
    assert winners == [job.worker_id]
    assert job.attempt_count == 1


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_being_written_is_left_to_whoever_writes_it() -> None:
    job, other = make_job(), make_job()

    with locked(job):
        assert BuildJob.objects.claim(job.pk, worker_id="worker-a", lease=LEASE) is None
        assert BuildJob.objects.claim(other.pk, worker_id="worker-a", lease=LEASE) is not None

    assert BuildJob.objects.claim(job.pk, worker_id="worker-a", lease=LEASE) is not None


@pytest.mark.django_db(transaction=True)
def test_the_end_of_dead_workers_leases_passes_over_a_job_that_is_being_written() -> None:
    written, other = claim(make_job()), claim(make_job())

    with locked(written):
        assert BuildJob.objects.expire_leases_of_dead_workers(stale=STALE) == 1
        assert list(BuildJob.objects.expired()) == [other]

    assert BuildJob.objects.expire_leases_of_dead_workers(stale=STALE) == 1


@pytest.mark.django_db(transaction=True)
def test_a_repair_passes_over_a_job_that_is_being_written() -> None:
    written, other = make_job(), make_job()
    for job in (written, other):
        BuildJob.objects.filter(pk=job.pk).update(
            status="failed", error_message="it ended", finished_at=Now()
        )

    with locked(written):
        assert sweeper.repair_attempts(limit=10) == 1
        other.attempt.refresh_from_db()
        assert other.attempt.status == "failed"

    assert sweeper.repair_attempts(limit=10) == 1


@pytest.mark.django_db
def test_a_renewal_prolongs_the_lease_and_a_lost_claim_cannot_renew() -> None:
    job = make_job()
    first = claim(job, lease=timedelta(minutes=5))
    assert BuildJob.objects.renew(first.fence, lease=LEASE)
    BuildJob.objects.give_back(first.fence)

    second = claim(job, "worker-b")

    assert not BuildJob.objects.renew(first.fence, lease=LEASE)
    assert BuildJob.objects.renew(second.fence, lease=LEASE)


@pytest.mark.django_db
def test_the_same_worker_claiming_again_fences_out_its_own_older_claim() -> None:
    job = make_job()
    first = claim(job, lease=EXPIRED)
    claim(job)

    assert not BuildJob.objects.renew(first.fence, lease=LEASE)
    with pytest.raises(LeaseLost):
        BuildJob.objects.lock(first.fence)


@pytest.mark.django_db
def test_a_cancelled_job_cannot_be_locked_by_its_worker() -> None:
    job = make_job()
    claimed = claim(job)
    BuildJob.objects.filter(pk=job.pk).update(
        status="cancelled", lease_expires_at=None, finished_at=Now()
    )

    with pytest.raises(LeaseLost):
        BuildJob.objects.lock(claimed.fence)


@pytest.mark.django_db
def test_the_sweeper_finds_overdue_and_expired_jobs_and_leaves_the_others() -> None:
    fresh = make_job()
    overdue = make_job()
    expired = make_job()
    held = make_job()
    BuildJob.objects.filter(pk=overdue.pk).update(queued_at=Now() - 2 * OVERDUE)
    make_worker("worker-a")
    claim(expired, lease=EXPIRED)
    claim(held)

    found = sweeper.claimable_jobs(overdue=OVERDUE, stale=STALE, limit=10, expire=True)

    assert set(found) == {overdue.pk, expired.pk}
    assert fresh.pk not in found


@pytest.mark.django_db
def test_the_leases_of_a_worker_without_heartbeat_end_and_those_of_the_living_stay() -> None:
    dead, gone, alive = make_job(), make_job(), make_job()
    make_worker("dead", seen=2 * STALE)
    make_worker("alive", seen=STALE / 4)
    claim(dead, "dead")
    claim(gone, "never-registered")
    claim(alive, "alive")

    found = sweeper.claimable_jobs(overdue=OVERDUE, stale=STALE, limit=10, expire=True)

    assert set(found) == {dead.pk, gone.pk}


@pytest.mark.django_db
def test_after_an_outage_nobody_is_taken_for_dead_before_all_could_beat() -> None:
    job = make_job()
    make_worker("slept", seen=2 * STALE)
    claim(job, "slept")

    assert sweeper.claimable_jobs(overdue=OVERDUE, stale=STALE, limit=10, expire=False) == []


@pytest.mark.django_db
def test_a_worker_registers_once_and_beats_on_the_same_row() -> None:
    first = make_worker("worker-a", seen=2 * STALE)
    Heartbeat.objects.beat(
        "worker-a", kind=Heartbeat.Kind.BUILD, hostname="test", pid=1, capacity=1
    )

    again = Heartbeat.objects.get()
    assert again.started_at == first.started_at
    assert again.seen_at > first.seen_at
    assert list(Heartbeat.objects.alive(stale=STALE)) == [again]


@pytest.mark.django_db
def test_workers_that_died_long_ago_are_forgotten() -> None:
    make_worker("old", seen=timedelta(days=2))
    make_worker("young", seen=timedelta(hours=2))

    Heartbeat.objects.forget()

    assert [worker.worker_id for worker in Heartbeat.objects.all()] == ["young"]


def test_a_fence_tells_claims_apart_by_all_three_parts() -> None:
    job = BuildJob(worker_id="a", attempt_count=1)

    assert job.fence == Fence(job.pk, "a", 1)
    assert job.fence != Fence(job.pk, "a", 2)
    assert job.fence != Fence(job.pk, "b", 1)
