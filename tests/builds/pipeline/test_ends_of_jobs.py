"""Failing and cancelling a job: one statement each, and what comes between."""

from __future__ import annotations

import pytest
from django.db import OperationalError, close_old_connections, connection

from builds.pipeline.job_state import JobState
from controlplane.errors import JobError
from runs.models import Run
from runs.record.verify import verify_run
from tests.bench.empty_jobs import empty_runner
from tests.builds.pipeline.jobs_at_work import events, states, take_over, work
from tests.factories import LEASE, make_job
from tests.support.broken_statements import answer_lost, before
from tests.support.sent_statements import sent_statements
from workspaces.lifecycle.queueing import cancel_job
from workspaces.models import BuildJob, LeaseLost, RuntimeInstance

pytestmark = pytest.mark.django_db(transaction=True)

FAIL, CANCEL = "ON CONFLICT (run_id)", "WITH before AS"
"""What only the statement of that end has."""
BROKEN = JobError("build-command-failed", "It burns.")


def at_work(job: BuildJob) -> JobState:
    """The job of a worker that has begun with it."""
    state = JobState.claim(job.pk, worker_id="worker-a", lease=LEASE)
    assert state is not None
    state.start()
    return state


def launching(job: BuildJob) -> JobState:
    """The job of a worker that has published its image and holds it still."""
    runner = empty_runner()
    with (
        before("'runtime.running'", lambda: take_over(job)),
        pytest.raises(LeaseLost),
    ):
        work(runner, job)
    return JobState(BuildJob.objects.get(pk=job.pk))


def written(statements: list[str]) -> list[str]:
    """The statements that write to the rows of a job, its attempt, its runtime or its sandbox."""
    tables = ("buildjob", "attempt", "runtimeinstance", "sandbox", "workspaceevent")
    return [
        one
        for one in statements
        if any(f"workspaces_{table}" in one for table in tables)
        and any(word in one for word in ("UPDATE workspaces_", "INSERT INTO", 'UPDATE \\"work'))
    ]


def assert_failed(job: BuildJob, runtime_events: list[str]) -> None:
    """Fail unless the failure is everywhere, and told once."""
    assert states(job) == ("failed",) * 4
    assert [one for one in events(job) if one.endswith("failed")] == [
        *runtime_events,
        "attempt.failed",
    ]
    job.refresh_from_db()
    assert (job.error_code, job.error_message, job.lease_expires_at) == (
        "build-command-failed",
        "It burns.",
        None,
    )
    runtime = RuntimeInstance.objects.get(attempt=job.attempt_id)
    assert (runtime.status, runtime.error_code) == ("failed", "build-command-failed")
    run = Run.objects.get(pk=job.attempt.run_id)
    assert (run.error_code, run.error_message) == ("build-command-failed", "It burns.")
    assert verify_run(run).ok


def assert_cancelled(job: BuildJob) -> None:
    """Fail unless the cancellation is everywhere, and told once."""
    assert states(job) == ("cancelled",) * 4
    assert events(job).count("attempt.cancelled") == 1
    assert verify_run(Run.objects.get(pk=job.attempt.run_id)).ok


def test_a_failure_is_one_statement_in_the_transaction_that_ends_the_record() -> None:
    job = make_job()
    state = at_work(job)

    with sent_statements() as statements:
        assert state.fail(BROKEN) == []

    [one] = written(statements)
    assert FAIL in one
    assert statements.count('"COMMIT"') == 1
    assert_failed(job, ["runtime.failed"])


def test_a_failure_of_a_launch_ends_the_runtime_that_was_awaited() -> None:
    job = make_job()
    state = launching(job)

    assert state.fail(BROKEN) == []

    assert_failed(job, ["runtime.failed"])


def test_a_failure_of_a_worker_whose_job_was_taken_over_writes_nothing() -> None:
    job = make_job()
    state = at_work(job)
    seen: list[object] = []

    def take() -> None:
        take_over(job)
        seen.append((states(job), events(job)))

    with before(FAIL, take), pytest.raises(LeaseLost):
        state.fail(BROKEN)

    assert seen == [(states(job), events(job))]
    assert not RuntimeInstance.objects.filter(attempt=job.attempt_id).exists()


def test_a_failure_of_a_job_that_was_cancelled_meanwhile_leaves_it_cancelled() -> None:
    job = make_job()
    state = at_work(job)

    with before(FAIL, lambda: cancel_job(job, reason="Not needed.")), pytest.raises(LeaseLost):
        state.fail(BROKEN)
    state.end_cancelled_boot_run()

    assert_cancelled(job)


def test_a_failure_whose_answer_is_lost_is_told_once() -> None:
    job = make_job()
    state = at_work(job)

    with answer_lost(FAIL):
        assert state.fail(BROKEN) == []

    assert_failed(job, ["runtime.failed"])


def test_a_failing_write_does_not_stop_the_others() -> None:
    job = make_job()
    state = at_work(job)
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE workspaces_runtimeinstance"
            " ADD CONSTRAINT no_failures CHECK (status <> 'failed')"
        )
    try:
        failures = state.fail(BROKEN)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE workspaces_runtimeinstance DROP CONSTRAINT no_failures")

    assert len(failures) == 1
    assert states(job) == ("failed",) * 4
    assert not RuntimeInstance.objects.filter(attempt=job.attempt_id).exists()
    assert [one for one in events(job) if one.endswith("failed")] == ["attempt.failed"]


@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "launching"])
def test_a_cancellation_is_one_statement_and_is_told_once(*, begun: bool) -> None:
    job = make_job()
    if begun:
        launching(job)

    with sent_statements() as statements:
        assert cancel_job(job, reason="Not needed.")

    [one] = written(statements)
    assert CANCEL in one
    assert not cancel_job(job, reason="Not needed at all.")
    assert_cancelled(job)
    job.refresh_from_db()
    assert (job.error_message, job.lease_expires_at) == ("Not needed.", None)
    assert events(job).count("runtime.stopped") == int(begun)
    if begun:
        runtime = RuntimeInstance.objects.get(attempt=job.attempt_id)
        assert (runtime.status, runtime.error_code) == ("stopped", "cancelled")


def test_a_cancellation_that_comes_behind_the_end_of_the_job_is_too_late() -> None:
    done, failed = make_job(), make_job()
    state = at_work(failed)

    with before(CANCEL, lambda: work(empty_runner(), done)):
        assert not cancel_job(done, reason="Not needed.")
    with before(CANCEL, lambda: state.fail(BROKEN)):
        assert not cancel_job(failed, reason="Not needed.")

    assert states(done) == ("succeeded", "succeeded", "ready", "running")
    assert_failed(failed, ["runtime.failed"])


def test_a_cancellation_of_a_job_that_was_claimed_meanwhile_stops_its_worker() -> None:
    job = make_job()
    state: list[JobState] = []

    with before(CANCEL, lambda: state.append(at_work(job))):
        assert cancel_job(job, reason="Not needed.")

    with pytest.raises(LeaseLost):
        state[0].require_lease()
    state[0].end_cancelled_boot_run()
    assert_cancelled(job)


def test_a_cancellation_whose_answer_is_lost_is_whole() -> None:
    job = make_job()

    with answer_lost(CANCEL), pytest.raises(OperationalError):
        cancel_job(job, reason="Not needed.")

    close_old_connections()  # as between two requests
    assert not cancel_job(job, reason="Not needed.")
    assert_cancelled(job)
