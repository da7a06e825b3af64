"""Listing what happened to a workspace."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from builds.pipeline.job_state import JobState
from controlplane.errors import JobError
from tests.conftest import Api
from tests.factories import claim, make_job
from tests.support.attempt_steps import start_attempt
from workspaces.models import BuildJob, WorkspaceEvent
from workspaces.services import record_event

pytestmark = pytest.mark.django_db


def path(job: BuildJob) -> str:
    return f"/v1/workspaces/{job.attempt.workspace_id}/events"


def test_the_history_of_a_failed_build_is_told_newest_first(api: Api) -> None:
    job = claim(make_job())
    start_attempt(job.attempt, worker_id="worker-a", attempt_count=1)
    JobState(job).fail(JobError("build-command-failed", "Exit 1."), timeout=1)
    items = api.get(path(job)).body["items"]
    assert [item["type"] for item in items] == [
        "attempt.failed",
        "runtime.failed",
        "attempt.running",
        "attempt.queued",
        "workspace.created",
    ]
    failed, _, running, queued, created = items
    assert failed["message"] == "Exit 1."
    assert failed["data"] == {"errorCode": "build-command-failed"}
    assert running["data"] == {"workerId": "worker-a", "attemptCount": 1}
    assert queued["data"]["runId"] == str(job.attempt.run_id)
    assert queued["attemptId"] == str(job.attempt_id)
    assert "attemptId" not in created
    assert {item["workspaceId"] for item in items} == {str(job.attempt.workspace_id)}


def test_events_are_stored_and_keep_their_ids(api: Api) -> None:
    job = make_job()
    before = api.get(path(job)).body["items"]
    start_attempt(job.attempt, worker_id="worker-a", attempt_count=1)
    after = api.get(path(job)).body["items"]
    assert after[1:] == before


def test_every_event_is_read_exactly_once_while_others_are_added(api: Api) -> None:
    job = make_job()
    for number in range(5):
        record_event(job.attempt, WorkspaceEvent.Type.ATTEMPT_RUNNING, f"{number}")
    ids = [str(pk) for pk in WorkspaceEvent.objects.order_by("-id").values_list("pk", flat=True)]
    found, cursor = [], ""
    while True:
        body = api.get(f"{path(job)}?limit=3{cursor}").body
        found += [item["eventId"] for item in body["items"]]
        record_event(job.attempt, WorkspaceEvent.Type.ATTEMPT_RUNNING, "new")
        if "nextCursor" not in body:
            break
        cursor = f"&cursor={body['nextCursor']}"
    assert found == ids


@pytest.mark.parametrize(("limit", "status"), [("200", 200), ("201", 400), ("0", 400), ("1x", 400)])
def test_up_to_two_hundred_events_are_shown(api: Api, limit: str, status: int) -> None:
    api.get(f"{path(make_job())}?limit={limit}", expect=status)


def test_a_foreign_workspace_is_as_absent_as_an_unknown_one(api: Api) -> None:
    foreign = api.get(f"{path(make_job())}?userId=usr_other", expect=404).body
    unknown = api.get(f"/v1/workspaces/{uuid.uuid4()}/events", expect=404).body
    assert (foreign["code"], foreign["detail"]) == (unknown["code"], unknown["detail"])


def test_a_page_takes_two_queries_however_long_it_is(api: Api) -> None:
    job = make_job()
    for _ in range(30):
        record_event(job.attempt, WorkspaceEvent.Type.ATTEMPT_RUNNING, "x")
    with CaptureQueriesContext(connection) as queries:
        assert len(api.get(path(job)).body["items"]) == 32
    assert len(queries) == 2
