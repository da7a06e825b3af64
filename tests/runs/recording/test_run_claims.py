"""The claim, the lease and the fence of runs."""

from __future__ import annotations

import threading
from collections.abc import Collection
from datetime import timedelta

import pytest
from django.db import connections, transaction
from django.db.models.functions import Now
from pytest_django import DjangoAssertNumQueries

from controlplane.work.leases import LeaseLost
from controlplane.work.models import Heartbeat
from runs.models import Run
from runs.recording import claims
from runs.recording import run_sweeper as sweeper
from runs.recording.run_worker import ANNOUNCED_FOR
from runs.services import end_sessions_not_begun
from tests.runs.executable import LEASE, boot_run, claim, make_executable, make_run_worker
from tests.support.locked_rows import locked
from workspaces.models import Attempt, RuntimeInstance

EXPIRED = timedelta(seconds=-1)
STALE = timedelta(minutes=20)
OVERDUE = timedelta(minutes=10)


def found(
    *, expire: bool = False, limit: int = 10, modes: Collection[Run.Mode] = tuple(Run.Mode)
) -> list[object]:
    if expire:
        Run.objects.expire_leases_of_dead_workers(stale=STALE)
    rows = sweeper.claimable_runs(overdue=OVERDUE, limit=limit, modes=modes)
    assert all(Run.objects.get(pk=run_id).mode in modes for run_id in rows)
    return list(rows)


@pytest.mark.django_db
def test_a_claim_makes_a_queued_run_running_and_counts() -> None:
    claimed = claim(make_executable())

    assert claimed.status == Run.Status.RUNNING
    assert (claimed.worker_id, claimed.claim_count) == ("worker-a", 1)
    assert claimed.started_at == claimed.claimed_at
    assert claimed.lease_expires_at is not None
    assert claimed.claimed_at is not None
    assert claimed.lease_expires_at - claimed.claimed_at == LEASE


@pytest.mark.django_db
def test_a_run_with_a_live_lease_is_not_claimable() -> None:
    run = make_executable()
    claim(run)

    assert claims.claim(run.pk, worker_id="worker-b", lease=LEASE) is None


@pytest.mark.django_db
def test_an_expired_lease_is_claimed_again_and_keeps_the_first_start() -> None:
    first = claim(make_executable(), lease=EXPIRED)

    again = claim(first, "worker-b")

    assert again.claim_count == 2
    assert again.started_at == first.started_at


@pytest.mark.django_db
def test_a_command_is_claimed_with_its_attempt_in_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    run = make_executable()
    assert run.attempt is not None

    with django_assert_num_queries(1):
        claimed = claims.claim(run.pk, worker_id="worker-a", lease=LEASE)
        assert claimed is not None
        assert claimed.attempt is not None
        assert claimed.attempt.run_id == run.attempt.run_id
    assert claimed.fence == Run.objects.get(pk=run.pk).fence
    assert claimed.status == Run.Status.RUNNING


@pytest.mark.django_db
def test_a_session_is_claimed_with_its_attempt(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    run = make_executable(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING)
    claimed = claims.claim(run.pk, worker_id="worker-a", lease=LEASE)
    assert claimed is not None

    with django_assert_num_queries(0):
        assert claimed.attempt is not None
        assert claimed.attempt.run_id is not None


@pytest.mark.django_db
@pytest.mark.parametrize("status", sorted(Run.TERMINAL))
def test_a_run_that_has_ended_is_not_claimable(status: Run.Status) -> None:
    run = make_executable(status=status, finished_at=Now())

    assert claims.claim(run.pk, worker_id="worker-a", lease=LEASE) is None


@pytest.mark.django_db
def test_a_run_that_is_not_recorded_is_nobodys() -> None:
    run = make_executable(recorded=False, queued_at=Now() - 2 * OVERDUE)

    assert claims.claim(run.pk, worker_id="worker-a", lease=LEASE) is None
    assert found() == []


@pytest.mark.django_db
def test_a_session_is_claimed_once_it_has_begun() -> None:
    run = make_executable(mode=Run.Mode.INTERACTIVE)
    assert claims.claim(run.pk, worker_id="worker-a", lease=LEASE) is None

    Run.objects.filter(pk=run.pk).update(status=Run.Status.RUNNING)

    assert found() == [run.pk]
    claim(run)


@pytest.mark.django_db
@pytest.mark.parametrize("status", RuntimeInstance.Status.values)
def test_a_boot_run_is_found_as_soon_as_there_may_be_a_container(status: str) -> None:
    run = boot_run(status)

    assert found() == [run.pk]


@pytest.mark.django_db
def test_a_boot_run_is_left_to_the_build_until_that_has_failed_for_a_while() -> None:
    run = boot_run(None)
    assert found() == []
    assert run.attempt_id is not None
    attempt = Attempt.objects.filter(pk=run.attempt_id)

    attempt.update(status=Attempt.Status.FAILED, finished_at=Now())
    assert found() == []

    attempt.update(finished_at=Now() - 2 * claims.BUILD_RECORDED_AFTER)
    assert found() == [run.pk]


@pytest.mark.django_db
def test_a_queued_run_is_found_when_its_message_is_overdue() -> None:
    run = make_executable()
    assert found() == []

    Run.objects.update(queued_at=Now() - OVERDUE)

    assert found() == [run.pk]


@pytest.mark.django_db
def test_a_run_of_a_dead_worker_is_found_again() -> None:
    run = claim(make_executable())
    make_run_worker("worker-a", seen=2 * STALE)
    assert found() == []

    assert found(expire=True) == [run.pk]


@pytest.mark.django_db
def test_a_run_of_a_worker_without_a_heartbeat_is_found_again() -> None:
    run = claim(make_executable())
    Heartbeat.objects.all().delete()

    assert found(expire=True) == [run.pk]


@pytest.mark.django_db
def test_a_run_of_a_living_worker_stays_its_own() -> None:
    claim(make_executable())
    make_run_worker("worker-a")

    assert found(expire=True) == []


@pytest.mark.django_db
def test_all_leases_are_renewed_in_one_update_and_lost_ones_stay_lost() -> None:
    kept, stolen = claim(make_executable()), claim(make_executable(), lease=EXPIRED)
    claim(stolen, "worker-b")
    fences = [kept.fence, stolen.fence]

    Run.objects.renew_all(fences, lease=10 * LEASE)

    row = Run.objects.get(pk=kept.pk)
    assert row.lease_expires_at is not None
    assert kept.lease_expires_at is not None
    assert row.lease_expires_at > kept.lease_expires_at + 8 * LEASE
    assert claims.cancel_requests(fences) == {kept.pk: False}


@pytest.mark.django_db
def test_whose_end_is_asked_for_is_told_with_its_state() -> None:
    run = claim(make_executable())

    Run.objects.update(cancel_requested_at=Now())

    assert claims.cancel_requests([run.fence]) == {run.pk: True}


@pytest.mark.django_db
def test_a_stale_claim_may_write_nothing() -> None:
    stale = claim(make_executable(), lease=EXPIRED)
    present = claim(stale, "worker-b")

    with pytest.raises(LeaseLost):
        Run.objects.require(stale.fence)
    with pytest.raises(LeaseLost), transaction.atomic():
        claims.lock(stale.fence, stale.number)
    Run.objects.require(present.fence)


@pytest.mark.django_db
def test_the_same_worker_with_an_older_claim_may_write_nothing_either() -> None:
    stale = claim(make_executable(), lease=EXPIRED)
    claim(stale)

    with pytest.raises(LeaseLost):
        Run.objects.require(stale.fence)


@pytest.mark.django_db
def test_without_a_lease_nothing_is_held() -> None:
    run = claim(make_executable())
    fence = run.fence
    Run.objects.update(lease_expires_at=None)

    with pytest.raises(LeaseLost):
        Run.objects.require(fence)
    with pytest.raises(LeaseLost), transaction.atomic():
        claims.lock(fence, run.number)
    assert claims.cancel_requests([fence]) == {}
    assert Run.objects.renew_all([fence], lease=LEASE) == 0
    assert Run.objects.release([fence]) == 0
    assert Run.objects.get(pk=run.pk).lease_expires_at is None


@pytest.mark.django_db
def test_a_released_run_is_found_at_once() -> None:
    run = claim(make_executable())

    assert Run.objects.release([run.fence]) == 1

    assert found() == [run.pk]


@pytest.mark.django_db
def test_claims_that_no_recorder_knows_of_are_given_back_unless_young() -> None:
    stray, held, young = (claim(make_executable()) for _ in range(3))
    Run.objects.exclude(pk=young.pk).update(claimed_at=Now() - timedelta(hours=1))

    released = Run.objects.release_strays("worker-a", [held.pk], older_than=timedelta(minutes=30))

    assert released == 1
    assert found() == [stray.pk]


@pytest.mark.django_db
def test_a_session_that_was_announced_long_ago_and_never_began_is_ended() -> None:
    old = make_executable(mode=Run.Mode.INTERACTIVE, queued_at=Now() - 2 * ANNOUNCED_FOR)
    young = make_executable(mode=Run.Mode.INTERACTIVE)
    begun = claim(
        make_executable(
            mode=Run.Mode.INTERACTIVE,
            status=Run.Status.RUNNING,
            queued_at=Now() - 2 * ANNOUNCED_FOR,
        )
    )

    assert end_sessions_not_begun(older_than=ANNOUNCED_FOR) == 1

    old.refresh_from_db()
    assert (old.status, old.error_code) == (Run.Status.FAILED, "session-not-begun")
    assert set(Run.objects.open().values_list("pk", flat=True)) == {young.pk, begun.pk}


@pytest.mark.django_db
def test_runs_of_some_kinds_are_found_however_many_others_wait_longer() -> None:
    for _ in range(3):
        make_executable(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING)
    run = make_executable(queued_at=Now() - 2 * OVERDUE)

    assert found(limit=1, modes=[Run.Mode.ONE_SHOT, Run.Mode.BOOT]) == [run.pk]


@pytest.mark.django_db
def test_no_more_are_found_than_asked_for() -> None:
    for _ in range(3):
        make_executable(queued_at=Now() - 2 * OVERDUE)
        claim(make_executable(), lease=EXPIRED)

    assert len(found(limit=4)) == 4


@pytest.mark.django_db(transaction=True)
def test_of_many_workers_one_gets_the_run() -> None:
    run = make_executable()
    together = threading.Barrier(8)
    winners: list[str] = []

    def take(worker_id: str) -> None:
        try:
            together.wait()
            if claims.claim(run.pk, worker_id=worker_id, lease=LEASE) is not None:
                winners.append(worker_id)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=take, args=(f"worker-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    run.refresh_from_db()
    assert winners == [run.worker_id]
    assert run.claim_count == 1


@pytest.mark.django_db(transaction=True)
def test_a_run_that_is_being_written_is_left_to_whoever_writes_it() -> None:
    run, other = make_executable(), make_executable()

    with locked(run):
        assert claims.claim(run.pk, worker_id="worker-a", lease=LEASE) is None
        assert claims.claim(other.pk, worker_id="worker-a", lease=LEASE) is not None

    assert claims.claim(run.pk, worker_id="worker-a", lease=LEASE) is not None


@pytest.mark.django_db(transaction=True)
def test_a_renewal_and_the_end_of_dead_workers_leases_pass_over_a_run_that_is_being_written() -> (
    None
):
    written, other = claim(make_executable()), claim(make_executable())
    fences = [written.fence, other.fence]

    with locked(written):
        assert Run.objects.renew_all(fences, lease=LEASE) == 1
        assert Run.objects.expire_leases_of_dead_workers(stale=STALE) == 1
        assert found() == [other.pk]

    assert found(expire=True) == [other.pk, written.pk]
