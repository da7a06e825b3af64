"""The statements of a job that builds nothing, and each of them when something comes between.

What leaves the process for another system than the database answers at once
(``tests.bench.empty_jobs``). The rows, the record and the connections are real.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from django.db import OperationalError, close_old_connections, connection
from django.db.models.functions import Now

from builds.images.compiler import BuildError, BuiltImage
from builds.pipeline.job_state import JobState, ShutdownError
from builds.pipeline.runner import JobRunner
from builds.planner import ImagePlan
from runs.models import Run, RunHead, RunLoss
from runs.record.verify import verify_run
from tests.bench.empty_jobs import NoCompiler, NoEngine, empty_runner
from tests.builds.pipeline.jobs_at_work import events, states, take_over, work
from tests.factories import LEASE, make_job
from tests.support.broken_statements import answer_lost, before, elsewhere
from tests.support.sent_statements import sent_statements
from tests.support.waiting import LONG_WAIT
from workspaces.lifecycle.queueing import cancel_job
from workspaces.models import BuildJob, LeaseLost, RuntimeInstance, Sandbox
from workspaces.runtimes.base import LaunchedRuntime, LaunchRequest

pytestmark = pytest.mark.django_db(transaction=True)

MOST = 15
OF_A_POLICY = 2
START, PUBLISH, FINISH = "'attempt.running'", "'image.published'", "'runtime.running'"
REUSE = "earlier AS"
"""What only the statement of that step has."""
CLAIM = 'INNER JOIN "workspaces_attempt"'
"""What the job is read with as it is claimed."""
STEPS = pytest.mark.parametrize(
    "step", [START, REUSE, PUBLISH, FINISH], ids=["start", "reuse", "publish", "ready"]
)
WHOLE = [
    *("workspace.created", "attempt.queued", "attempt.running", "image.published"),
    *("runtime.pending", "runtime.running", "attempt.succeeded"),
]


class Guarded(NoEngine):
    """Launches at once, behind a network whose policy is agreed on before."""

    def launch(self, request: LaunchRequest, *, cancelled: threading.Event) -> LaunchedRuntime:
        """Return a runtime that does not exist."""
        assert request.egress is not None
        request.egress(f"e{request.run_id.hex[-14:]}")
        return super().launch(request, cancelled=cancelled)


@pytest.fixture
def runner() -> JobRunner:
    """A runner of jobs whose plan was built before."""
    runner = empty_runner()
    work(runner, make_job())
    return runner


def assert_ready(job: BuildJob) -> None:
    """Fail unless the workspace runs, and everything that led to it is written once."""
    assert states(job) == ("succeeded", "succeeded", "ready", "running")
    assert events(job) == WHOLE
    job.refresh_from_db()
    assert (job.lease_expires_at, job.reused) == (None, True)
    runtime = RuntimeInstance.objects.get(attempt=job.attempt_id)
    assert (runtime.status, runtime.adapter) == ("running", "docker")
    run = Run.objects.get(pk=job.attempt.run_id)
    head = RunHead.objects.get(run_number=run.number)
    assert (head.source_ended, head.loss_count) == (True, 0)
    assert verify_run(run).ok


def test_a_job_that_builds_nothing_takes_at_most_fifteen_statements(runner: JobRunner) -> None:
    job = make_job()

    with sent_statements() as statements:
        work(runner, job)

    assert len(statements) <= MOST, "\n".join(statements)
    assert any("COPY run_event" in one for one in statements)
    assert any(one == '"COMMIT"' for one in statements)
    assert_ready(job)


def test_a_job_under_an_egress_policy_takes_few_statements_more() -> None:
    spec = {
        "harness": {"id": "shell"},
        "runtime": {"network": {"egress": {"rules": [{"hosts": ["a.test"]}]}}},
    }
    runner = empty_runner(Guarded())
    runner = replace(runner, launcher=replace(runner.launcher, require_egress=lambda: None))
    work(runner, make_job(spec=spec))
    job = make_job(spec=spec)

    with sent_statements() as statements:
        work(runner, job)

    assert len(statements) <= MOST + OF_A_POLICY, "\n".join(statements)
    assert states(job) == ("succeeded", "succeeded", "ready", "running")
    run = Run.objects.get(pk=job.attempt.run_id)
    head = RunHead.objects.get(run_number=run.number)
    assert head.coverage["egress"] == {"state": "on", "method": "proxy"}
    assert (head.source_ended, head.loss_count) == (True, 0)
    assert verify_run(run).ok


def test_claim_start_reuse_publication_and_ready_are_one_statement_each(runner: JobRunner) -> None:
    job = make_job()

    with sent_statements() as statements:
        work(runner, job)

    writing = ("UPDATE ", "INSERT ")
    of_the_job = [
        one
        for one in statements
        if "workspaces_buildjob" in one and any(word in one for word in writing)
    ]
    assert len(of_the_job) == 5, "\n".join(of_the_job)
    steps = (START, REUSE, PUBLISH, FINISH)
    assert all(any(step in one for one in of_the_job) for step in steps)


@STEPS
def test_a_step_of_a_worker_whose_job_was_taken_over_writes_nothing(
    runner: JobRunner, step: str
) -> None:
    job = make_job()
    seen: list[object] = []

    def take() -> None:
        take_over(job)
        seen.append((states(job), events(job)))

    with before(step, take), pytest.raises(LeaseLost):
        work(runner, job)

    # Of two workers only the second one writes on, and nothing is told twice.
    assert seen == [(states(job), events(job))]
    BuildJob.objects.filter(pk=job.pk).update(lease_expires_at=Now())
    work(runner, job, "worker-c")
    assert_ready(job)


def test_a_worker_that_lost_its_job_leaves_the_record_to_who_follows(runner: JobRunner) -> None:
    job = make_job()

    with before(PUBLISH, lambda: take_over(job)), pytest.raises(LeaseLost):
        work(runner, job)

    head = RunHead.objects.get(run_number=Run.objects.get(pk=job.attempt.run_id).number)
    assert (head.source_id, head.last_sequence) == ("", 0)


@STEPS
def test_a_job_that_is_cancelled_before_a_step_ends_with_a_whole_record(
    runner: JobRunner, step: str
) -> None:
    job = make_job()

    with (
        before(step, lambda: cancel_job(job, reason="Not needed.")),
        pytest.raises(LeaseLost),
    ):
        work(runner, job)

    assert states(job) == ("cancelled",) * 4
    assert "runtime.running" not in events(job)
    run = Run.objects.get(pk=job.attempt.run_id)
    assert not RunLoss.objects.filter(run_number=run.number).exists()
    assert verify_run(run).ok
    head = RunHead.objects.get(run_number=run.number)
    # Of a build that had begun the record says so, whoever cancelled it.
    assert len(head.past_sources) == (0 if step == START else 1)


@dataclass
class KilledCompiler(NoCompiler):
    """Has each build killed, after something else has happened."""

    act: Callable[[], object]

    def build(self, plan: ImagePlan, *, job_id: uuid.UUID, **_: Any) -> BuiltImage:
        elsewhere(self.act)
        raise BuildError("build-killed", "The build was killed.")


def test_a_job_that_is_cancelled_as_its_worker_shuts_down_ends_with_a_whole_record() -> None:
    job = make_job()
    state = JobState.claim(job.pk, worker_id="worker-a", lease=LEASE)
    assert state is not None

    def cancel_and_shut_down() -> None:
        assert cancel_job(job, reason="Not needed.")
        state.shut_down()

    with pytest.raises(LeaseLost):
        killed_runner(cancel_and_shut_down).run(state)

    assert states(job) == ("cancelled",) * 4
    run = Run.objects.get(pk=job.attempt.run_id)
    assert not RunLoss.objects.filter(run_number=run.number).exists()
    assert verify_run(run).ok


def test_a_job_of_a_worker_that_shuts_down_is_given_back_with_its_record_open() -> None:
    job = make_job()
    state = JobState.claim(job.pk, worker_id="worker-a", lease=LEASE)
    assert state is not None

    with pytest.raises(ShutdownError):
        killed_runner(state.shut_down).run(state)

    assert states(job) == ("running", "running", "running", "running")
    work(empty_runner(), job, "worker-b")
    assert states(job) == ("succeeded", "succeeded", "ready", "running")


def killed_runner(act: Callable[[], object]) -> JobRunner:
    """A runner whose builds are killed after ``act``."""
    runner = empty_runner()
    return replace(runner, builder=replace(runner.builder, compiler=KilledCompiler(act)))


@STEPS
def test_a_step_whose_answer_is_lost_is_not_done_twice_and_fails_nothing(
    runner: JobRunner, step: str
) -> None:
    job = make_job()

    with answer_lost(step):
        work(runner, job)

    assert_ready(job)


def test_a_step_is_done_again_when_it_was_undone_with_its_connection(runner: JobRunner) -> None:
    job = make_job()
    ours = connection.connection.info.backend_pid

    def end_session() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, %s)", [ours, int(LONG_WAIT * 1000)])

    with before(PUBLISH, end_session):
        work(runner, job)

    assert_ready(job)


def test_a_claim_whose_answer_is_lost_is_given_back_and_claimed_again(runner: JobRunner) -> None:
    job = make_job()

    with answer_lost(CLAIM), pytest.raises(OperationalError):
        work(runner, job)

    close_old_connections()  # as the worker does between jobs
    assert BuildJob.objects.get(pk=job.pk).worker_id == "worker-a"
    assert JobState.claim(job.pk, worker_id="worker-b", lease=LEASE) is None
    BuildJob.objects.filter(pk=job.pk).update(claimed_at=Now() - LEASE)
    assert BuildJob.objects.release_strays("worker-a", [], older_than=LEASE / 2) == 1
    work(runner, job, "worker-b")
    assert_ready(job)


def test_what_is_not_ready_is_not_shown_as_ready(runner: JobRunner) -> None:
    job = make_job()
    shown: list[str] = []

    def look() -> None:
        shown.append(Sandbox.objects.get(pk=job.attempt.sandbox_id).status)

    with before(START, look), before(PUBLISH, look), before(FINISH, look):
        work(runner, job)

    assert shown == ["queued", "running", "running"]
