"""Listing the attempts of a workspace."""

from __future__ import annotations

import uuid
from datetime import datetime

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from builds.pipeline.job_state import JobState
from controlplane.errors import JobError
from tests.conftest import Api
from tests.factories import claim, make_job
from tests.support.attempt_steps import start_attempt
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.lifecycle.start import retry_sandbox
from workspaces.models import Attempt, BuildJob

pytestmark = pytest.mark.django_db


def retried(times: int) -> BuildJob:
    """Return the last job of a sandbox that failed and was retried."""
    job = make_job()
    for _ in range(times):
        fail_unclaimed_job(job, code="build-command-failed", message="It failed.")
        job = retry_sandbox(job.attempt.sandbox, requested_by="ada")
    return job


def path(job: BuildJob) -> str:
    return f"/v1/workspaces/{job.attempt.workspace_id}/attempts"


def test_the_newest_attempt_comes_first_with_how_it_stands(api: Api) -> None:
    job = retried(2)
    newest, middle, oldest = api.get(path(job)).body["items"]
    assert newest["attemptId"] == str(job.attempt_id)
    assert newest["jobId"] == str(job.pk)
    assert newest["runId"] == str(job.attempt.run_id)
    assert (newest["status"], newest["relation"], newest["triggerType"]) == (
        "queued",
        "retry",
        "manual",
    )
    assert (oldest["status"], oldest["relation"], oldest["triggerType"]) == (
        "failed",
        "launch",
        "api",
    )
    assert middle["error"] == {"code": "build-command-failed", "message": "It failed."}
    assert {item["sandboxId"] for item in (newest, middle, oldest)} == {str(job.attempt.sandbox_id)}
    assert newest["spec"] == {"harness": {"id": "shell"}}
    assert newest["queuedAt"] <= newest["linkedAt"]
    assert "durationMs" not in newest


def test_an_attempt_that_ended_tells_how_long_it_took(api: Api) -> None:
    job = claim(make_job())
    start_attempt(job.attempt, worker_id="worker-a", attempt_count=1)
    JobState(job).fail(JobError("x", "It failed."), timeout=1)
    (item,) = api.get(path(job)).body["items"]
    took = datetime.fromisoformat(item["finishedAt"]) - datetime.fromisoformat(item["startedAt"])
    assert abs(item["durationMs"] - took.total_seconds() * 1000) <= 1


def test_every_attempt_is_read_exactly_once(api: Api) -> None:
    job = retried(4)
    found, cursor = [], ""
    while True:
        body = api.get(f"{path(job)}?limit=2{cursor}").body
        found += [item["attemptId"] for item in body["items"]]
        if "nextCursor" not in body:
            break
        cursor = f"&cursor={body['nextCursor']}"
    ids = Attempt.objects.order_by("-id").values_list("pk", flat=True)
    assert found == [str(pk) for pk in ids]
    assert len(found) == 5


@pytest.mark.parametrize("limit", ["0", "101", "x", ""])
def test_a_limit_outside_its_range_is_a_400(api: Api, limit: str) -> None:
    assert set(api.get(f"{path(make_job())}?limit={limit}", expect=400).codes) == {"limit"}


def test_a_foreign_workspace_is_as_absent_as_an_unknown_one(api: Api) -> None:
    foreign = api.get(f"{path(make_job())}?ownerUserId=usr_other", expect=404).body
    unknown = api.get(f"/v1/workspaces/{uuid.uuid4()}/attempts", expect=404).body
    assert (foreign["code"], foreign["detail"]) == (unknown["code"], unknown["detail"])
    api.get(f"{path(make_job())}?ownerUserId=usr_test")


def test_a_page_takes_as_many_queries_with_ten_attempts_as_with_one(api: Api) -> None:
    one, ten = retried(0), retried(9)
    with CaptureQueriesContext(connection) as few:
        api.get(path(one))
    with CaptureQueriesContext(connection) as many:
        assert len(api.get(path(ten)).body["items"]) == 10
    assert len(many) == len(few)
