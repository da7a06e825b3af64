"""Why a workspace is not ready: one machine-readable answer in every state."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from builds.pipeline.job_state import JobState
from controlplane.errors import JobError
from tests.conftest import Api
from tests.factories import claim, make_job, make_worker
from tests.support import attempt_steps
from tests.support.engines import make_engine
from workspaces import services as workspaces
from workspaces.lifecycle import attempt_states, reasons
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.lifecycle.queueing import cancel_job
from workspaces.models import BuildJob
from workspaces.runtimes.base import LaunchedRuntime

pytestmark = pytest.mark.django_db

PUBLISHED = {
    "published_reference": "127.0.0.1:5000/tests/a:latest",
    "published_digest_reference": "127.0.0.1:5000/tests/a@sha256:" + "a" * 64,
    "published_digest": "sha256:" + "a" * 64,
}


def read(api: Api, job: BuildJob) -> dict[str, Any]:
    """Read the workspace of ``job``; its sandbox and its attempt say the same."""
    attempt = job.attempt
    workspace: dict[str, Any] = api.get(f"/v1/workspaces/{attempt.workspace_id}").body
    sandbox = api.get(f"/v1/sandboxes/{attempt.sandbox_id}").body
    listed = api.get(f"/v1/workspaces/{attempt.workspace_id}/attempts").body["items"][0]
    summary = api.get("/v1/workspaces?ownerUserId=usr_test").body["items"][-1]
    for other in (sandbox, listed, summary):
        for member in ("status", "reason", "runtime", "publishedImage", "error"):
            assert other.get(member) == workspace.get(member), member
    return workspace


def publish(job: BuildJob) -> None:
    """Write what the end of the build writes."""
    BuildJob.objects.filter(pk=job.pk).update(status="succeeded", finished_at=Now(), **PUBLISHED)
    attempt_steps.await_runtime(job.attempt, published={})


def test_a_queued_job_without_any_worker_says_so(api: Api) -> None:
    make_worker("worker-dead", seen=timedelta(minutes=5))
    shown = read(api, make_job())
    assert shown["status"] == "queued"
    assert shown["reason"]["code"] == "no-worker"
    assert "buildworker" in shown["reason"]["next"]
    assert "error" not in shown
    assert "startedAt" not in shown


def test_a_draining_worker_does_not_count(api: Api) -> None:
    worker = make_worker("worker-a")
    worker.draining = True
    worker.save()
    assert read(api, make_job())["reason"]["code"] == "no-worker"


def test_workers_of_another_engine_are_not_what_a_placed_job_waits_for(api: Api) -> None:
    make_engine("first")
    make_engine("second")
    make_worker("worker-a", engine="first")
    waiting = read(api, make_job(engine_name="second"))["reason"]
    assert waiting["code"] == "no-worker"
    assert "no build worker of the engine second is alive" in waiting["message"]
    make_worker("worker-b", engine="second")
    placed, free = make_job(engine_name="first"), make_job()
    for job, alive in ((placed, "of the engine first (1 alive)"), (free, "worker (2 alive)")):
        reason = api.get(f"/v1/sandboxes/{job.attempt.sandbox_id}").body["reason"]
        assert reason["code"] == "queued"
        assert alive in reason["message"]


def test_a_queued_job_knows_its_place(api: Api) -> None:
    make_worker("worker-a")
    first, second, third = make_job(), make_job(), make_job()
    for job, place in ((first, "0 jobs"), (second, "1 job ahead"), (third, "2 jobs")):
        path = f"/v1/sandboxes/{job.attempt.sandbox_id}"
        reason = api.get(path).body["reason"]
        assert reason["code"] == "queued"
        assert place in reason["message"]
        assert set(reason) == {"code", "message", "since", "next"}


def test_a_job_that_is_claimed_while_it_is_read_has_a_place_all_the_same(api: Api) -> None:
    make_worker("worker-a")
    job = make_job()
    claimed: list[uuid.UUID] = []

    def claim_after(
        execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        done = execute(sql, params, many, context)
        if not claimed and sql.startswith("SELECT") and 'FROM "workspaces_buildjob"' in sql:
            claimed.append(job.pk)
            claim(job)
        return done

    with connection.execute_wrapper(claim_after):
        reason = api.get(f"/v1/sandboxes/{job.attempt.sandbox_id}").body["reason"]
    assert claimed
    assert reason["message"].endswith("for a build worker (1 alive), 0 jobs ahead of it.")


def test_a_job_far_back_is_not_counted_to_its_place(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (attempt_states, reasons):
        monkeypatch.setattr(module, "QUEUE_POSITIONS_SHOWN", 2)
    make_worker("worker-a")
    jobs = [make_job() for _ in range(4)]
    said = [api.get(f"/v1/sandboxes/{job.attempt.sandbox_id}").body["reason"] for job in jobs]
    places = [reason["message"].partition("alive), ")[2] for reason in said]
    counted = ["0 jobs ahead of it.", "1 job ahead of it.", "2 jobs ahead of it."]
    assert places == [*counted, "more than 2 jobs ahead of it."]


def test_a_claimed_job_is_building_and_says_who_has_it(api: Api) -> None:
    job = claim(make_job())
    attempt_steps.start_attempt(job.attempt, worker_id="worker-a", attempt_count=1)
    shown = read(api, job)
    assert shown["status"] == "running"
    assert shown["reason"]["code"] == "building"
    for fact in ("worker-a", "try 1 of 3", "lease until"):
        assert fact in shown["reason"]["message"]
    assert shown["startedAt"]


def test_a_published_image_is_being_launched(api: Api) -> None:
    job = claim(make_job())
    attempt_steps.start_attempt(job.attempt, worker_id="worker-a", attempt_count=1)
    publish(job)
    shown = read(api, job)
    assert shown["status"] == "running"
    assert shown["reason"]["code"] == "launching"
    assert shown["publishedImage"]["digest"] == PUBLISHED["published_digest"]
    assert "runtime" not in shown


def test_a_ready_workspace_has_no_reason(api: Api) -> None:
    job = claim(make_job())
    attempt_steps.start_attempt(job.attempt, worker_id="worker-a", attempt_count=1)
    publish(job)
    BuildJob.objects.filter(pk=job.pk).update(lease_expires_at=None)
    launched = LaunchedRuntime(
        adapter="docker", resource_id="abc", reference="svc-abc", endpoint="docker-exec://abc"
    )
    attempt_steps.mark_ready(job.attempt, launched)
    shown = read(api, job)
    assert shown["status"] == "ready"
    assert "reason" not in shown
    assert shown["runtime"]["status"] == "running"
    assert shown["runtime"]["endpoint"].startswith(f"ssh://ws-{job.attempt.workspace_id}@")
    assert shown["finishedAt"]
    workspaces.stop_runtime(job.attempt, code="exited", message="The foreground ended.")
    stopped = read(api, job)
    assert stopped["status"] == "stopped"
    assert stopped["reason"]["code"] == "exited"
    assert "error" not in stopped


def test_a_failed_build_tells_code_and_message(api: Api) -> None:
    job = claim(make_job())
    error = JobError("build-command-failed", "The build ended with exit code 1.")
    JobState(job).fail(error, timeout=1)
    shown = read(api, job)
    assert shown["status"] == "failed"
    assert shown["error"] == {"code": error.code, "message": error.message}
    assert (shown["reason"]["code"], shown["reason"]["message"]) == (error.code, error.message)
    assert "another attempt" in shown["reason"]["next"]


def test_a_fault_of_ours_tells_nothing_of_its_inside(api: Api) -> None:
    job = claim(make_job())
    JobState(job).fail(RuntimeError("hunter2 in /srv"), timeout=1)
    shown = read(api, job)
    assert shown["error"]["code"] == "internal-error"
    assert "hunter2" not in str(shown)


def test_a_failed_launch_is_an_error_although_the_job_succeeded(api: Api) -> None:
    job = claim(make_job())
    publish(job)
    error = JobError("step-failed", "The setup step install ended with exit code 1.")
    JobState(job).fail(error, timeout=1)
    shown = read(api, job)
    assert shown["status"] == "failed"
    assert shown["error"]["code"] == "step-failed"


def test_a_cancelled_job_says_who_cancelled_it(api: Api) -> None:
    job = make_job()
    assert cancel_job(job, reason="Cancelled by ada.")
    shown = read(api, job)
    assert shown["status"] == "cancelled"
    assert shown["reason"]["code"] == "cancelled"
    assert shown["reason"]["message"] == "Cancelled by ada."
    assert "error" not in shown


def test_a_job_that_ended_without_its_attempt_is_being_settled(api: Api) -> None:
    job = make_job()
    fail_unclaimed_job(job, code="queue-publish-failed", message="The queue is away.")
    assert read(api, job)["reason"]["code"] == "queue-publish-failed"
