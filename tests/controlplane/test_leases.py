"""Leases and their fences, one guard at a time, on the leased rows that there are."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now

from controlplane.work.leases import Fence, LeaseLost
from controlplane.work.models import Heartbeat
from tests.factories import LEASE, claim, make_job, make_worker
from tests.support.locked_rows import locked
from tests.support.sent_statements import sent_statements
from workspaces.models import BuildJob, Transition

EXPIRED = timedelta(seconds=-1)
STALE = timedelta(minutes=20)


def make_transition() -> Transition:
    """Ask for the stop of a workspace of its own."""
    workspace = make_job().attempt.workspace
    return Transition.objects.create(
        workspace=workspace, kind=Transition.Kind.STOP, cause=Transition.Cause.USER
    )


def message(job: BuildJob) -> str:
    """What is written to the row."""
    return BuildJob.objects.get(pk=job.pk).error_message


@pytest.mark.django_db
@pytest.mark.parametrize(
    "other", [{"row_id": uuid.uuid4()}, {"worker_id": "worker-b"}, {"count": 2}, {"count": 0}]
)
def test_each_part_of_a_fence_alone_says_that_a_lease_is_lost(other: dict[str, object]) -> None:
    job = claim(make_job())
    lost: Fence = replace(job.fence, **other)  # type: ignore[arg-type] # one of its parts

    with pytest.raises(LeaseLost):
        BuildJob.objects.require(lost)
    with pytest.raises(LeaseLost):
        BuildJob.objects.write(lost, error_message="written")
    assert not BuildJob.objects.renew(lost, lease=LEASE)
    assert BuildJob.objects.renew_all([lost], lease=LEASE) == 0
    assert BuildJob.objects.release([lost]) == 0
    assert message(job) == ""
    BuildJob.objects.require(job.fence)


@pytest.mark.django_db
def test_a_write_reaches_the_one_row_of_its_fence() -> None:
    written, other = claim(make_job()), claim(make_job())

    BuildJob.objects.write(written.fence, error_message="written")

    assert (message(written), message(other)) == ("written", "")


@pytest.mark.django_db
def test_whose_lease_is_lost_is_told_which_row_and_who() -> None:
    fence = replace(claim(make_job()).fence, count=7)

    with pytest.raises(LeaseLost, match=f"^{fence.row_id} is not held by worker-a any more$"):
        BuildJob.objects.require(fence)


@pytest.mark.django_db(transaction=True)
def test_a_job_is_acquired_while_its_attempt_is_being_written() -> None:
    job = make_job()

    with locked(job.attempt):
        assert BuildJob.objects.claim(job.pk, worker_id="worker-a", lease=LEASE) is not None


@pytest.mark.django_db(transaction=True)
def test_a_renewal_waits_for_whoever_writes_the_row() -> None:
    job = claim(make_job())

    with locked(job), pytest.raises(OperationalError, match="lock timeout"):
        BuildJob.objects.renew(job.fence, lease=LEASE)
    assert BuildJob.objects.renew(job.fence, lease=10 * LEASE)

    renewed = BuildJob.objects.get(pk=job.pk).lease_expires_at
    assert renewed is not None
    assert job.lease_expires_at is not None
    assert renewed > job.lease_expires_at + 8 * LEASE


@pytest.mark.django_db(transaction=True)
def test_the_leases_of_several_rows_are_renewed_and_expired_without_a_transaction_around() -> None:
    first, second = claim(make_job()), claim(make_job(), "worker-b")
    assert BuildJob.objects.renew_all([first.fence, second.fence], lease=10 * LEASE) == 2
    make_worker("worker-b")

    assert BuildJob.objects.expire_leases_of_dead_workers(stale=STALE) == 1

    assert list(BuildJob.objects.expired()) == [first]
    assert BuildJob.objects.expire_leases_of_dead_workers(stale=STALE) == 0


@pytest.mark.django_db
def test_what_has_no_lease_is_neither_renewed_nor_released() -> None:
    row = make_transition()
    fence = row.fence

    assert not Transition.objects.renew(fence, lease=LEASE)
    assert Transition.objects.renew_all([fence], lease=LEASE) == 0
    assert Transition.objects.release([fence]) == 0
    assert Transition.objects.get(pk=row.pk).lease_expires_at is None


@pytest.mark.django_db
def test_of_no_leases_none_is_renewed_or_released() -> None:
    claim(make_job())

    assert list(BuildJob.objects.held_by_any([])) == []
    assert BuildJob.objects.renew_all([], lease=LEASE) == 0
    assert BuildJob.objects.release([]) == 0


@pytest.mark.django_db
def test_a_release_writes_what_it_is_given_and_expires_the_lease() -> None:
    job = claim(make_job())

    assert BuildJob.objects.release([job.fence], error_message="released") == 1

    assert message(job) == "released"
    assert list(BuildJob.objects.expired()) == [job]


@pytest.mark.django_db
def test_expired_leases_come_with_the_oldest_first_and_live_ones_not_at_all() -> None:
    young, live, old = (claim(make_job()) for _ in range(3))
    for job, ago in ((young, 1), (old, 60)):
        expired = Now() - timedelta(seconds=ago)
        BuildJob.objects.filter(pk=job.pk).update(lease_expires_at=expired)

    assert list(BuildJob.objects.expired()) == [old, young]
    assert list(BuildJob.objects.exclude(pk__in=BuildJob.objects.expired())) == [live]


@pytest.mark.django_db
def test_free_is_what_nobody_holds_and_what_a_dead_worker_holds_if_it_is_said_who_lives() -> None:
    unheld, expired, of_dead, of_living = (make_transition() for _ in range(4))
    for row, worker, lease in (
        (expired, "worker-a", EXPIRED),
        (of_dead, "worker-b", LEASE),
        (of_living, "worker-a", LEASE),
    ):
        Transition.objects.filter(pk=row.pk).acquire(worker_id=worker, lease=lease)
    make_worker("worker-a")
    make_worker("worker-b", seen=2 * STALE)

    assert set(Transition.objects.free()) == {unheld, expired}
    alive = Heartbeat.objects.alive(stale=STALE)
    assert set(Transition.objects.free(alive=alive)) == {unheld, expired, of_dead}


@pytest.mark.django_db
def test_strays_are_old_live_leases_of_the_worker_itself_on_rows_it_does_not_hold() -> None:
    stray, held, young, of_another, over = (claim(make_job()) for _ in range(5))
    BuildJob.objects.exclude(pk=young.pk).update(claimed_at=Now() - timedelta(hours=1))
    BuildJob.objects.filter(pk=of_another.pk).update(worker_id="worker-b")
    BuildJob.objects.filter(pk=over.pk).update(lease_expires_at=Now() - timedelta(hours=1))
    before = BuildJob.objects.get(pk=over.pk).lease_expires_at

    count = BuildJob.objects.release_strays("worker-a", [held.pk], older_than=timedelta(minutes=30))

    assert count == 1
    assert set(BuildJob.objects.expired()) == {stray, over}
    assert BuildJob.objects.get(pk=over.pk).lease_expires_at == before


@pytest.mark.django_db
def test_a_lease_that_ran_out_by_itself_is_not_expired_again() -> None:
    job = claim(make_job(), lease=EXPIRED)
    before = BuildJob.objects.get(pk=job.pk).lease_expires_at

    assert BuildJob.objects.expire_leases_of_dead_workers(stale=STALE) == 0

    assert BuildJob.objects.get(pk=job.pk).lease_expires_at == before


@pytest.mark.django_db(transaction=True)
def test_a_locked_row_is_written_by_nobody_else_until_the_transaction_ends() -> None:
    job = claim(make_job())
    with transaction.atomic():
        BuildJob.objects.lock(job.fence)
        other = connection.copy()
        try:
            table = connection.ops.quote_name(BuildJob._meta.db_table)
            with other.cursor() as cursor, pytest.raises(OperationalError):
                cursor.execute(f"SELECT FROM {table} WHERE id = %s FOR UPDATE NOWAIT", [job.pk])
        finally:
            other.close()


@pytest.mark.django_db
def test_a_row_that_takes_no_writes_any_more_is_locked_by_its_holder_and_by_nobody_else() -> None:
    job = claim(make_job())
    BuildJob.objects.filter(pk=job.pk).update(
        status=BuildJob.Status.CANCELLED, finished_at=Now(), lease_expires_at=None
    )
    with transaction.atomic():
        with pytest.raises(LeaseLost):
            BuildJob.objects.lock(job.fence)
        BuildJob.objects.lock_held(job.fence)
        with pytest.raises(LeaseLost):
            BuildJob.objects.lock_held(replace(job.fence, worker_id="worker-b"))


@pytest.mark.django_db(transaction=True)
def test_a_lease_is_acquired_with_all_that_was_asked_for_in_one_statement() -> None:
    make_job()
    job = make_job()
    rows = BuildJob.objects.select_related("attempt__sandbox").filter(pk=job.pk)

    with sent_statements() as statements:
        found = rows.acquire(worker_id="worker-a", lease=LEASE, status="running")
        assert found is not None
        assert found.attempt.sandbox.pk == job.attempt.sandbox_id

    assert len(statements) == 1
    assert (found.worker_id, found.attempt_count, found.status) == ("worker-a", 1, "running")
    assert found == BuildJob.objects.get(pk=job.pk)
    assert found.lease_expires_at == BuildJob.objects.get(pk=job.pk).lease_expires_at


@pytest.mark.django_db(transaction=True)
def test_the_first_row_that_nobody_is_just_acquiring_is_acquired_and_no_other() -> None:
    first, second, third = (make_job() for _ in range(3))
    rows = BuildJob.objects.filter(status="queued").order_by("pk")
    given: dict[str, Any] = {"worker_id": "worker-a", "lease": LEASE, "status": "running"}

    with locked(first):
        assert rows.acquire(**given) == second
    assert rows.acquire(**given) == first
    assert rows.filter(pk__in=[]).acquire(**given) is None
    assert rows.exclude(pk=third.pk).acquire(**given) is None

    assert list(rows) == [third]
