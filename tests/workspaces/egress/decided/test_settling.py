"""A boot record ends behind the last decision, or says that some may be missing."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from builds.job_sweeper import repair_attempts
from builds.pipeline.job_state import JobState
from controlplane.errors import JobError
from runs.boot_runs import BootRuns
from runs.models import Run, RunHead, RunLoss
from runs.record import egress_endings, store
from runs.record.egress_endings import NOT_SETTLED
from runs.record.verify import verify_run
from tests.factories import claim
from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.decided.decided_rows import (
    decision,
    head_of,
    hosts,
    losses,
    network_of,
    with_policy,
)
from workspaces.egress.decided import serving
from workspaces.egress.decided.journal import Journal
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.models import Attempt, BuildJob, EgressNetwork, LeaseLost

settled_by_another_thread = pytest.mark.django_db(transaction=True)
in_one = pytest.mark.django_db


def answering(journal: Journal, attempt: Attempt) -> threading.Thread:
    """Be a proxy that settles an attempt as soon as it is asked."""

    def answer() -> None:
        try:
            while (attempt.pk, network_of(attempt).pk) not in serving.ending(journal.id):
                stopped.wait(0.01)
            journal.close(attempt.pk)
            journal.settle(attempt.pk)
        finally:
            connection.close()

    stopped = threading.Event()
    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def end(attempt: Attempt) -> bool:
    return BootRuns().end_boot_run(attempt, failed=True, code="x", message="It failed.")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_endings, "SETTLE_SECONDS", LONG_WAIT)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_endings, "SETTLE_SECONDS", 0.0)


@settled_by_another_thread
@pytest.mark.usefixtures("patient")
def test_a_record_ends_behind_what_was_decided_until_then(journal: Journal) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    proxy = answering(journal, attempt)
    assert end(attempt)
    proxy.join()
    assert hosts(run) == [("a.test", 1)]
    assert NOT_SETTLED not in losses(run)
    assert head_of(run).sealed_at is not None
    assert verify_run(run).ok


@settled_by_another_thread
@pytest.mark.usefixtures("patient")
def test_a_job_that_nobody_claimed_settles_its_run_as_well(journal: Journal) -> None:
    attempt, run = with_policy(journal.id)
    BuildJob.objects.filter(attempt=attempt).update(
        status=BuildJob.Status.QUEUED, finished_at=None, published_digest=""
    )
    journal.add(decision(attempt.pk))
    proxy = answering(journal, attempt)
    job = BuildJob.objects.get(attempt=attempt)
    assert fail_unclaimed_job(job, code="x", message="It failed.")
    proxy.join()
    assert hosts(run) == [("a.test", 1)]
    assert NOT_SETTLED not in losses(run)


@settled_by_another_thread
@pytest.mark.usefixtures("impatient")
def test_where_the_proxy_is_dead_the_record_says_that_decisions_may_be_missing() -> None:
    attempt, run = with_policy("dead")
    before = head_of(run).last_sequence
    assert end(attempt)
    loss = RunLoss.objects.get(run_number=run.number, reason=NOT_SETTLED)
    assert (loss.kind, loss.detected_via) == ("dropped_event", "gap")
    assert (loss.from_sequence, loss.to_sequence) == (before, None)
    assert verify_run(run).ok


@in_one
def test_a_record_whose_network_nobody_served_ends_at_once_and_lacks_nothing() -> None:
    attempt, run = with_policy()
    assert end(attempt)
    assert NOT_SETTLED not in losses(run)


@in_one
def test_inside_of_a_transaction_a_run_is_left_to_the_sweeper_until_it_is_settled(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_endings, "LOOK_SECONDS", -1.0)  # an error if it were waited for
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    with transaction.atomic():
        assert not end(attempt)
    assert head_of(run).sealed_at is None
    assert network_of(attempt).ending_at is not None
    journal.close(attempt.pk)
    journal.settle(attempt.pk)
    assert end(attempt)
    assert hosts(run) == [("a.test", 1)]
    assert NOT_SETTLED not in losses(run)


@in_one
def test_inside_of_a_transaction_a_dead_proxy_is_not_waited_for_for_ever() -> None:
    attempt, run = with_policy("dead")
    assert not end(attempt)
    EgressNetwork.objects.update(ending_at=F("ending_at") - timedelta(hours=1))
    assert end(attempt)
    assert NOT_SETTLED in losses(run)


@in_one
def test_inside_of_a_transaction_a_clock_that_was_put_back_holds_no_end_up() -> None:
    attempt, _ = with_policy("dead")
    assert not end(attempt)
    EgressNetwork.objects.update(ending_at=F("ending_at") + timedelta(hours=1))
    assert end(attempt)


@settled_by_another_thread
@pytest.mark.usefixtures("patient")
def test_the_sweeper_waits_for_no_proxy_and_ends_the_runs_of_dead_ones_later() -> None:
    told = [with_policy("dead") for _ in range(3)]
    Attempt.objects.update(
        status=Attempt.Status.FAILED, error_code="x", finished_at=Now() - timedelta(hours=1)
    )
    repair_attempts()
    assert [head_of(run).sealed_at for _, run in told] == [None] * 3
    assert [network_of(attempt).ending_at is None for attempt, _ in told] == [False] * 3
    EgressNetwork.objects.update(ending_at=F("ending_at") - timedelta(seconds=2 * LONG_WAIT))
    repair_attempts()
    assert [losses(run) for _, run in told] == [[NOT_SETTLED]] * 3


@settled_by_another_thread
def test_a_worker_that_has_lost_its_job_ends_nothing_of_its_successor(journal: Journal) -> None:
    attempt, _ = with_policy(journal.id)
    BuildJob.objects.filter(attempt=attempt).update(
        status=BuildJob.Status.QUEUED, finished_at=None, published_digest=""
    )
    lost = claim(BuildJob.objects.get(attempt=attempt))
    BuildJob.objects.filter(attempt=attempt).update(lease_expires_at=Now())
    claim(lost, "worker-b")
    with pytest.raises(LeaseLost):
        JobState(lost).fail(JobError("x", "It failed."))
    assert network_of(attempt).ending_at is None


@in_one
def test_a_network_is_not_served_any_more_once_its_record_is_being_settled(
    journal: Journal,
) -> None:
    attempt, run = with_policy()
    egress_endings.settle(run)
    assert not serving.take(network_of(attempt).pk, attempt.pk, journal.id)
    journal.close(attempt.pk)
    with pytest.raises(OSError):
        journal.add(decision(attempt.pk))
    journal.add(decision(attempt.pk, "b.test", allowed=False))
    journal.flush()
    assert hosts(run) == [("b.test", 1)], "what passes no more is told until all is stored"


@in_one
def test_a_network_that_is_made_when_the_record_has_ended_is_not_served(journal: Journal) -> None:
    attempt, _ = with_policy()
    assert end(attempt)
    EgressNetwork.objects.create(bridge="elate", attempt=attempt, policy={})
    assert not serving.take("elate", attempt.pk, journal.id)


@in_one
def test_nothing_is_stored_behind_the_end_of_a_record(journal: Journal) -> None:
    attempt, run = with_policy(journal.id)
    store.close_early(run.number, reason="container-gone", detail="removed")
    before = head_of(run).last_sequence
    journal.add(decision(attempt.pk))
    journal.settle(attempt.pk)
    assert head_of(run).last_sequence == before
    assert losses(run).count(NOT_SETTLED) == 1
    assert verify_run(run).ok


@in_one
def test_a_proxy_remembers_of_records_that_have_ended_only_that_nothing_passes(
    journal: Journal,
) -> None:
    attempt, run = with_policy(journal.id)
    journal.add(decision(attempt.pk))
    egress_endings.settle(run)
    journal.close(attempt.pk)
    assert journal.settle(attempt.pk)
    journal.flush()
    assert not journal._kept
    with pytest.raises(OSError):
        journal.add(decision(attempt.pk))
    journal.add(decision(attempt.pk, allowed=False))
    journal.close(attempt.pk)
    assert journal.settle(attempt.pk), "whoever asks again is answered again"
    assert not journal._kept


@in_one
def test_only_boot_runs_wait_for_a_proxy() -> None:
    attempt, run = with_policy("dead")
    other = Run(mode=Run.Mode.ONE_SHOT, attempt=attempt)
    egress_endings.settle(other)
    assert egress_endings.is_settled(other)
    egress_endings.close(other, RunHead())
    assert network_of(attempt).ending_at is None
    assert run.mode == Run.Mode.BOOT
