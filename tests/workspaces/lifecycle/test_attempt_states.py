"""How one attempt stands, read by the compiled statements, and how it stands in a list: the same.

A list goes through the ORM.
"""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest
from django.db.models.functions import Now
from pytest_django.fixtures import Settings

from tests.factories import LEASE, make_job, make_worker
from tests.support.engines import STALE, make_engine, persistent, silence
from workspaces.lifecycle.attempt_states import attempt_states
from workspaces.models import Attempt, BuildJob, Engine, RuntimeInstance, Transition
from workspaces.presentation import present_sandbox, present_workspace
from workspaces.queries import get_sandbox, get_workspace_with_latest

pytestmark = pytest.mark.django_db

PUBLISHED = {
    "published_reference": "127.0.0.1:5000/tests/a:latest",
    "published_digest_reference": "127.0.0.1:5000/tests/a@sha256:" + "a" * 64,
    "published_digest": "sha256:" + "a" * 64,
}
ENDED = {"failed", "cancelled", "stopped", "succeeded"}


@pytest.fixture
def other(settings: Settings) -> Attempt:
    """Another attempt, which makes a list of two; workers and engines do not fall silent.

    It waits for nothing: a list asks what its jobs wait for if one of them does.
    """
    settings.WORKER_HEARTBEAT_STALE_MS = STALE.total_seconds() * 1000
    job = make_job()
    put(job, "failed")
    put(job.attempt, "failed")
    return job.attempt


def put(row: Any, status: str, **values: Any) -> None:
    """Write the status of a row, and its end if it is one."""
    if status in ENDED:
        values["finished_at"] = Now()
    if status in ("failed", "cancelled"):
        values |= {"error_code": f"code-{status}", "error_message": f"It is {status}."}
    if isinstance(row, BuildJob) and status == "succeeded":
        values |= PUBLISHED
    if isinstance(row, BuildJob) and status == "running":
        values |= {"worker_id": "worker-a", "claimed_at": Now(), "lease_expires_at": Now() + LEASE}
    type(row).objects.filter(pk=row.pk).update(status=status, **values)
    row.refresh_from_db()


def add_runtime(attempt: Attempt, status: str) -> None:
    """Write a runtime that has been launched, with the status."""
    runtime = RuntimeInstance.objects.create(
        run_id=attempt.run_id,
        attempt=attempt,
        adapter="docker",
        resource_id=uuid.uuid4().hex,
        reference="svc-test",
        endpoint="ssh://somewhere",
        engine_name="first",
        launched_at=Now(),
    )
    put(runtime, status)


def assert_same(attempt: Attempt, other: Attempt) -> Any:
    """Fail unless the attempt stands alone as it does in a list; return how."""
    alone = attempt_states([attempt])[attempt.pk]
    listed = attempt_states([other, attempt])[attempt.pk]
    assert alone.to_members() == listed.to_members()
    assert (alone.engine_name, alone.is_pinned) == (listed.engine_name, listed.is_pinned)
    for one, same in ((alone.job, listed.job), (alone.runtime, listed.runtime)):
        members = [vars(row) if row is not None else {} for row in (one, same)]
        for found in members:
            found.pop("_state", None)
        assert members[0] == members[1]
    return alone


def test_an_attempt_stands_alone_as_in_a_list_in_every_state(other: Attempt) -> None:
    make_worker("worker-a")
    make_engine("first")
    seen = set()
    for attempt_status, job_status, runtime_status in itertools.product(
        Attempt.Status.values,
        [*BuildJob.Status.values, None],
        [*RuntimeInstance.Status.values, None],
    ):
        job = make_job(spec=persistent())
        attempt = job.attempt
        put(attempt, attempt_status)
        if job_status is None:
            job.delete()
        else:
            put(job, job_status)
        if runtime_status is not None:
            add_runtime(attempt, runtime_status)
        state = assert_same(attempt, other)
        seen.add(state.reason.code if state.reason else state.status.value)
    assert seen >= {"ready", "queued", "settling", "code-failed", "code-cancelled", "stopped"}


@pytest.mark.parametrize("engine", ["answers", "silent", "draining", "none"])
@pytest.mark.parametrize("transition", [None, *Transition.Kind.values])
@pytest.mark.parametrize("runs", [False, True])
def test_an_attempt_that_waits_stands_alone_as_in_a_list(
    other: Attempt, engine: str, transition: str | None, runs: bool
) -> None:
    make_engine("first")
    make_engine("second")
    job = make_job()
    if runs:
        put(job, "succeeded")
        put(job.attempt, "succeeded")
        add_runtime(job.attempt, "running")
    if transition is not None:
        Transition.objects.create(
            workspace_id=job.attempt.workspace_id, kind=transition, cause="user", requested_at=Now()
        )
    BuildJob.objects.filter(pk=job.pk).update(engine_name="" if engine == "none" else "first")
    if engine == "silent":
        silence("first")
    if engine == "draining":
        Engine.objects.filter(pk="first").update(state="draining")
    if engine == "none":
        Engine.objects.update(state="draining")
    reason = assert_same(job.attempt, other).reason
    if transition is not None:
        assert reason.code == ("stopping" if transition == "stop" else "deleting")
    elif engine == "silent":
        assert (reason.code, reason.engine) == ("engine-lost", "first")
    elif not runs:
        codes = {"answers": "no-worker", "draining": "engine-draining", "none": "engine-draining"}
        assert reason.code == codes[engine]
    # The answers are made of nothing else.
    attempt = job.attempt
    workspace = get_workspace_with_latest(attempt.workspace_id, owner_user_id=None)
    sandbox = get_sandbox(attempt.sandbox_id, owner_user_id=None)
    assert present_workspace(workspace)["reason"] == present_sandbox(sandbox)["reason"] == reason
