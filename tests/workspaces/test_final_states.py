"""Final states stay as they are, and what runs already keeps its start: the guard of each alone."""

from __future__ import annotations

import pytest
from django.db.models.functions import Now

from tests.factories import LEASE, claim, make_job
from workspaces.models import Attempt, BuildJob, RuntimeInstance

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("final", sorted(Attempt.TERMINAL))
@pytest.mark.parametrize("other", sorted(Attempt.TERMINAL))
def test_a_final_attempt_is_not_settled_again(final: Attempt.Status, other: Attempt.Status) -> None:
    attempt = make_job().attempt
    mine = Attempt.objects.filter(pk=attempt.pk)
    assert mine.settle(final, error_message="first") == 1
    first = mine.get()
    assert first.finished_at is not None

    assert mine.settle(other, error_message="second") == 0

    again = mine.get()
    assert (again.status, again.error_message) == (final, "first")
    assert (again.finished_at, again.updated_at) == (first.finished_at, first.updated_at)


@pytest.mark.parametrize("status", [Attempt.Status.RUNNING, *sorted(Attempt.TERMINAL)])
def test_an_attempt_that_runs_or_is_final_keeps_its_start(status: Attempt.Status) -> None:
    attempt = make_job().attempt
    mine = Attempt.objects.filter(pk=attempt.pk)
    assert mine.start() == 1
    if status in Attempt.TERMINAL:
        mine.settle(status)
    first = mine.get()
    assert first.started_at is not None

    assert mine.start() == 0

    again = mine.get()
    assert (again.status, again.started_at) == (status, first.started_at)


@pytest.mark.parametrize("final", sorted(RuntimeInstance.TERMINAL))
@pytest.mark.parametrize("other", sorted(RuntimeInstance.TERMINAL))
def test_a_final_runtime_is_not_settled_again(
    final: RuntimeInstance.Status, other: RuntimeInstance.Status
) -> None:
    attempt = make_job().attempt
    RuntimeInstance.objects.create(run_id=attempt.run_id, attempt=attempt)
    mine = RuntimeInstance.objects.filter(attempt=attempt)
    assert mine.settle(final, error_message="first") == 1
    finished = mine.get().finished_at

    assert mine.settle(other, error_message="second") == 0
    assert mine.begin_stop() == 0

    again = mine.get()
    assert (again.status, again.error_message, again.finished_at) == (final, "first", finished)


def test_a_launched_job_gets_no_lease_again() -> None:
    job = claim(make_job())
    BuildJob.objects.filter(pk=job.pk).update(
        status=BuildJob.Status.SUCCEEDED,
        published_digest="sha256:" + "0" * 64,
        finished_at=Now(),
        lease_expires_at=None,
    )

    assert BuildJob.objects.claim(job.pk, worker_id="worker-b", lease=LEASE) is None
    assert not BuildJob.objects.renew(job.fence, lease=LEASE)

    job.refresh_from_db()
    assert (job.lease_expires_at, job.worker_id, job.attempt_count) == (None, "worker-a", 1)
