"""Workers that wake up late, clocks that differ, and workspaces that make their end take long."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from builds.pipeline.job_state import JobState
from controlplane.errors import NotFound
from runs import boot_runs
from runs.models import Run
from runs.record.new_record import insert_with_head
from tests.bench.empty_jobs import empty_runner
from tests.factories import OWNER, claim, make_job
from tests.runs.ready import ready_attempt
from tests.workspaces.credentials.credential_engine import HoldingEngine
from tests.workspaces.lifecycle.test_lifecycle_races import Engine, attend, transition_request
from workspaces.lifecycle.reconciler import reconcile
from workspaces.lifecycle.transitions import (
    TransitionRequest,
    expire_workspaces,
    request_transition,
)
from workspaces.models import Attempt, LeaseLost, RuntimeInstance, Transition, Workspace
from workspaces.runtimes.base import AgentAnswer, LaunchError

STOP = Transition.Kind.STOP
DAY = timedelta(days=1)


def expires_in(attempt: Attempt, seconds: float) -> None:
    Workspace.objects.filter(pk=attempt.workspace_id).update(
        expires_at=Now() + timedelta(seconds=seconds)
    )


def expired(attempt: Attempt) -> TransitionRequest:
    return TransitionRequest(
        workspace_id=attempt.workspace_id,
        kind=STOP,
        owner_user_id=None,
        cause=Transition.Cause.EXPIRED,
        requested_by="time to live",
    )


# ---------------------------------------------------------------- the time to live


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_wakes_up_late_stops_no_workspace_that_was_started_again() -> None:
    """Between reading the list and its request it slept; others have stopped and started."""
    attempt = ready_attempt()
    expires_in(attempt, 3600)
    with pytest.raises(NotFound):
        request_transition(expired(attempt))
    assert not Transition.objects.exists()
    assert RuntimeInstance.objects.get(attempt=attempt).status == "running"
    assert Workspace.objects.get(pk=attempt.workspace_id).expires_at is not None


@pytest.mark.django_db(transaction=True)
def test_a_workspace_whose_time_is_over_is_stopped_once() -> None:
    over, not_over = ready_attempt(), ready_attempt()
    expires_in(over, -1)
    expires_in(not_over, 3600)
    assert [expire_workspaces(), expire_workspaces()] == [1, 0]
    transition = Transition.objects.get()
    assert (transition.workspace_id, transition.cause) == (over.workspace_id, "expired")


# ---------------------------------------------------------------- clocks that differ


@pytest.mark.django_db(transaction=True)
def test_what_is_stopped_is_the_latest_attempt_and_not_that_with_the_highest_id() -> None:
    """Ids begin with the time of whoever made them, and one machine's clock was ahead."""
    latest = ready_attempt()
    earlier = Attempt.objects.create(
        id=uuid.UUID("ffffffff-ffff-7fff-bfff-ffffffffffff"),
        sandbox=latest.sandbox,
        workspace_id=latest.workspace_id,
        status=Attempt.Status.FAILED,
        finished_at=Now(),
        requested_by=latest.requested_by,
        spec=latest.spec,
    )
    assert request_transition(transition_request(latest.workspace_id))
    engine = Engine(running={latest.run_id})
    attend(engine)
    assert earlier.run_id not in engine.running
    assert engine.running == set()
    assert RuntimeInstance.objects.get(attempt=latest).status == "stopped"
    assert not Transition.objects.open().exists()


# ---------------------------------------------------------------- what is kept, and no longer


@pytest.mark.django_db(transaction=True)
def test_the_ended_container_of_a_deleted_workspace_is_not_kept_for_anybody() -> None:
    """It is on another engine than that of the worker that has deleted the workspace."""
    deleted, ended = ready_attempt(), ready_attempt()
    RuntimeInstance.objects.update(status="stopped", finished_at=Now())
    Workspace.objects.filter(pk=deleted.workspace_id).update(deleted_at=Now())
    engine = Engine(running={deleted.run_id, ended.run_id})
    reconcile(engine, instance_id="test", grace=timedelta(), keep_ended=DAY)
    assert engine.running == {ended.run_id}


# ---------------------------------------------------------------- workspaces that do not answer


@dataclass
class Silent(Engine):
    """Its agents take their time, and say nothing or something."""

    answers: bool = False
    asked: builtins.list[str] = field(default_factory=list)

    def call_agent(
        self, run_id: uuid.UUID, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> AgentAnswer:
        """Say nothing to ``stop``, or only that it heard."""
        self.asked.append(arguments[1])
        if not self.answers:
            raise LaunchError("agent-silent", "The agent in the workspace gave no answer.")
        return AgentAnswer(0, b"", b"")


def commands(attempt: Attempt, number: int) -> list[Run]:
    """Commands that run in a workspace."""
    runs = [
        Run(
            workspace_id=attempt.workspace_id,
            attempt=attempt,
            mode=Run.Mode.ONE_SHOT,
            owner_user_id=OWNER,
            recorded=True,
            status=Run.Status.RUNNING,
            started_at=Now(),
        )
        for _ in range(number)
    ]
    for run in runs:
        insert_with_head(run)
    return runs


@pytest.mark.django_db(transaction=True)
def test_an_agent_that_does_not_answer_once_is_not_asked_for_every_command() -> None:
    """Each question may take ten seconds, and there may be more commands than the lease is long."""
    attempt = ready_attempt()
    commands(attempt, 5)
    assert request_transition(transition_request(attempt.workspace_id))
    engine = Silent(running={attempt.run_id})
    attend(engine)
    assert len(engine.asked) == 1
    assert engine.acts() == ["stop", "remove"]
    cancelled = Run.objects.filter(mode=Run.Mode.ONE_SHOT, cancel_requested_at__isnull=False)
    assert cancelled.count() == 5


@pytest.mark.django_db(transaction=True)
def test_an_agent_that_answers_slowly_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boot_runs, "CANCEL_SECONDS", 0.0)
    attempt = ready_attempt()
    commands(attempt, 5)
    assert request_transition(transition_request(attempt.workspace_id))
    engine = Silent(running={attempt.run_id}, answers=True)
    attend(engine)
    assert engine.asked == []
    assert engine.acts() == ["stop", "remove"]


@pytest.mark.django_db(transaction=True)
def test_every_command_of_a_workspace_that_answers_is_asked_to_end() -> None:
    attempt = ready_attempt()
    running = commands(attempt, 5)
    assert request_transition(transition_request(attempt.workspace_id))
    engine = Silent(running={attempt.run_id}, answers=True)
    attend(engine)
    assert sorted(engine.asked) == sorted(str(run.pk) for run in running)


# ---------------------------------------------------------------- volumes


@pytest.mark.django_db(transaction=True)
def test_a_launch_asks_whether_it_is_still_wanted_before_it_empties_volumes() -> None:
    """Pulling may take an hour, and a worker that sleeps meanwhile is not told of a stop."""
    job = claim(
        make_job(spec={"harness": {"id": "shell"}, "runtime": {"persistence": "persistent"}})
    )
    engine = HoldingEngine()
    asked: list[str] = []

    def may_remove() -> bool:
        try:
            engine.requests[0].before_removal()
        except LeaseLost:
            return False
        return True

    def sleep() -> None:
        asked.append("before" if may_remove() else "refused")
        assert request_transition(transition_request(job.attempt.workspace_id))
        asked.append("after" if may_remove() else "refused")

    engine.before_launch = sleep
    with pytest.raises(LeaseLost):
        empty_runner(engine).run(JobState(job))
    assert engine.requests[0].fresh_volumes
    assert asked == ["before", "refused"]
