"""What one owner may have: counted exactly, whoever asks at the same moment."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models.functions import Now
from pytest_django.fixtures import Settings

from runs.models import Run, RunHead
from runs.record import store
from runs.record.retention import prunable, prune
from tests.conftest import OWNER, Answer, Api
from tests.factories import claim, make_job
from tests.runs.ready import ready_attempt
from tests.support.waiting import LONG_WAIT
from workspaces import services as workspaces
from workspaces.models import Attempt, BuildJob, Sandbox, Transition, Workspace

LIMITS = ("OWNER_MAX_WORKSPACES", "OWNER_MAX_RUNNING_BUILDS", "OWNER_MAX_RECORD_BYTES")


@pytest.fixture(autouse=True)
def unlimited(settings: Settings) -> None:
    """Each test says what is limited."""
    for name in LIMITS:
        setattr(settings, name, 0)


def refused(answer: Answer, name: str, *, maximum: int, present: int) -> None:
    """The answer names the limit, for people and for programs."""
    assert answer.status == 429
    assert answer.body["code"] == "owner-limit-reached"
    assert answer.body["limits"] == [{"name": name, "maximum": maximum, "present": present}]
    (fault,) = answer.body["errors"]
    assert fault["code"].startswith("too-many-")
    assert f"allows {maximum} (OWNER_MAX_" in fault["detail"]
    assert "retry-after" not in answer.headers


def new(request_body: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {**request_body, "repository": f"tests/{uuid.uuid4().hex[:12]}", **members}


def run_body(attempt: Attempt) -> dict[str, Any]:
    return {
        "ownerUserId": OWNER,
        "workspaceId": str(attempt.workspace_id),
        "harnessId": "shell",
        "mode": "one-shot",
        "prompt": "true",
    }


def stopped() -> Attempt:
    """Return the attempt of a workspace that was stopped and whose image is not there any more."""
    with transaction.atomic():
        attempt = ready_attempt()
    with transaction.atomic():
        workspaces.stop_runtime(attempt, code="stopped", message="Stopped.")
    BuildJob.objects.filter(attempt=attempt).update(image_removed_at=Now())
    return attempt


@pytest.mark.django_db
def test_a_workspace_beyond_the_limit_is_refused_and_nothing_of_it_is_written(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    settings.OWNER_MAX_WORKSPACES = 2
    for path in ("/v1/sandboxes", "/v1/workspaces"):
        api.post(path, new(request_body))
    for path in ("/v1/sandboxes", "/v1/workspaces"):
        answer = api.post(path, new(request_body), expect=429)
        refused(answer, "workspaces", maximum=2, present=2)
    assert (Workspace.objects.count(), Sandbox.objects.count(), Run.objects.count()) == (2, 2, 2)
    api.post("/v1/workspaces", new(request_body, ownerUserId="somebody-else"))


@pytest.mark.django_db
def test_a_deleted_workspace_makes_room_and_one_that_is_being_deleted_does_not(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    settings.OWNER_MAX_WORKSPACES = 1
    workspace_id = api.post("/v1/workspaces", new(request_body)).body["workspaceId"]
    api.request("DELETE", f"/v1/workspaces/{workspace_id}?ownerUserId={OWNER}", expect=202)
    api.post("/v1/workspaces", new(request_body), expect=429)
    Transition.objects.update(finished_at=Now())
    Workspace.objects.update(deleted_at=Now())
    api.post("/v1/workspaces", new(request_body))


@pytest.mark.django_db
def test_a_workspace_that_exists_may_be_started_when_no_more_may_be_made(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    attempt = stopped()
    settings.OWNER_MAX_WORKSPACES = 1
    api.post("/v1/sandboxes", new(request_body, workspaceId=str(attempt.workspace_id)))


def published(job: BuildJob) -> None:
    """Have the image of a job published; its container is still to be launched."""
    BuildJob.objects.filter(pk=job.pk).update(
        status=BuildJob.Status.SUCCEEDED, published_digest="sha256:0", finished_at=Now()
    )


@pytest.mark.django_db
def test_builds_count_while_they_are_queued_and_built_and_not_while_they_are_launched(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    job = make_job()
    claim(job)
    claim(make_job())
    make_job()
    idle = stopped()
    settings.OWNER_MAX_RUNNING_BUILDS = 3

    path = f"/v1/workspaces/{idle.workspace_id}/start"
    for where, body in (
        ("/v1/workspaces", new(request_body)),
        ("/v1/sandboxes", new(request_body, workspaceId=str(idle.workspace_id))),
        (path, {"ownerUserId": OWNER}),
    ):
        refused(api.post(where, body, expect=429), "runningBuilds", maximum=3, present=3)
    idle.refresh_from_db()
    assert Attempt.objects.filter(workspace=idle.workspace_id).count() == 1

    published(job)
    api.post(path, {"ownerUserId": OWNER})


@pytest.mark.django_db
def test_builds_that_are_under_way_keep_no_image_from_being_started(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    built = api.post("/v1/workspaces", new(request_body)).body
    job = BuildJob.objects.get(pk=built["jobId"])
    claim(job)
    published(job)
    BuildJob.objects.filter(pk=job.pk).update(lease_expires_at=None)
    make_job()
    settings.OWNER_MAX_RUNNING_BUILDS = 1

    api.post("/v1/workspaces", new(request_body))
    other = {**request_body["spec"], "access": {"ssh": {"enabled": True}}}
    answer = api.post("/v1/workspaces", new(request_body, spec=other), expect=429)
    refused(answer, "runningBuilds", maximum=1, present=2)
    stranger = new(request_body, ownerUserId="somebody-else")
    api.post("/v1/workspaces", stranger)
    api.post("/v1/workspaces", {**stranger, **new({})}, expect=429)

    BuildJob.objects.update(image_removed_at=Now())
    refused(
        api.post("/v1/workspaces", new(request_body), expect=429),
        "runningBuilds",
        maximum=1,
        present=2,
    )


@pytest.mark.django_db
def test_a_workspace_whose_image_is_there_is_started_beside_builds(
    api: Api, settings: Settings
) -> None:
    idle = stopped()
    make_job()
    settings.OWNER_MAX_RUNNING_BUILDS = 1
    path = f"/v1/workspaces/{idle.workspace_id}/start"
    api.post(path, {"ownerUserId": OWNER}, expect=429)

    BuildJob.objects.filter(attempt=idle).update(image_removed_at=None)
    api.post(path, {"ownerUserId": OWNER})


@pytest.mark.django_db
def test_every_limit_that_is_reached_is_named(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    make_job()
    settings.OWNER_MAX_WORKSPACES = settings.OWNER_MAX_RUNNING_BUILDS = 1
    answer = api.post("/v1/workspaces", new(request_body), expect=429)
    assert [each["name"] for each in answer.body["limits"]] == ["workspaces", "runningBuilds"]


@pytest.mark.django_db
def test_records_beyond_the_limit_refuse_new_runs_and_starts_and_let_the_old_go_on(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    attempt = ready_attempt()
    run = Run.objects.get(pk=attempt.run_id)
    before = RunHead.objects.get(pk=run.number).stored_bytes
    store.close_early(run.number, reason="test", detail="for its bytes")
    stored = RunHead.objects.get(pk=run.number).stored_bytes
    assert before == 0 < stored
    settings.OWNER_MAX_RECORD_BYTES = stored + 1
    begun = api.post("/v1/runs", run_body(attempt), expect=201).body

    settings.OWNER_MAX_RECORD_BYTES = stored
    for path, body in (("/v1/runs", run_body(attempt)), ("/v1/workspaces", new(request_body))):
        answer = api.post(path, body, expect=429)
        refused(answer, "recordBytes", maximum=stored, present=stored)
    client_side = {**run_body(attempt), "mode": "interactive"}
    api.post("/v1/runs", client_side, expect=201)  # it has no record

    going_on = Run.objects.get(pk=begun["runId"])
    assert store.end_in_order(going_on.number, reason="test", status=Run.Status.COMPLETED)
    prune(prunable())
    api.post("/v1/runs", run_body(attempt), expect=201)


@pytest.mark.django_db
def test_a_repeated_request_is_never_refused(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    settings.OWNER_MAX_WORKSPACES = settings.OWNER_MAX_RUNNING_BUILDS = 1
    headers = {"idempotency-key": "one"}
    first = api.post("/v1/workspaces", request_body, headers=headers)
    again = api.post("/v1/workspaces", request_body, headers=headers)
    assert again.body == first.body
    assert again.headers["idempotency-replayed"] == "true"
    api.post("/v1/workspaces", request_body, headers={"idempotency-key": "two"}, expect=429)


def at_once(number: int, ask: Any) -> list[Answer]:
    """Return the answers to requests that are sent at the same moment."""
    together = threading.Barrier(number)

    def one(index: int) -> Answer:
        try:
            together.wait(LONG_WAIT)
            answer: Answer = ask(index)
            return answer
        finally:
            connections.close_all()

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(one, range(number)))


@pytest.mark.django_db(transaction=True)
def test_thirty_requests_at_once_do_not_exceed_a_limit(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    settings.OWNER_MAX_WORKSPACES = 7
    answers = at_once(30, lambda index: Api().request("POST", "/v1/workspaces", new(request_body)))
    assert Counter(answer.status for answer in answers) == {202: 7, 429: 23}
    assert Workspace.objects.count() == 7


@pytest.mark.django_db(transaction=True)
def test_builds_of_requests_at_once_do_not_exceed_a_limit_over_starts_and_creations(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    idle = [stopped() for _ in range(6)]
    settings.OWNER_MAX_RUNNING_BUILDS = 4

    def ask(index: int) -> Answer:
        if index % 2:
            return Api().request("POST", "/v1/workspaces", new(request_body))
        path = f"/v1/workspaces/{idle[index // 2].workspace_id}/start"
        return Api().request("POST", path, {"ownerUserId": OWNER})

    assert Counter(answer.status for answer in at_once(12, ask)) == {202: 4, 429: 8}
    assert BuildJob.objects.filter(status="queued").count() == 4


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("limit", LIMITS[:2])
def test_no_twin_of_a_request_is_refused_because_the_other_took_the_last_place(
    api: Api, request_body: dict[str, Any], settings: Settings, limit: str
) -> None:
    setattr(settings, limit, 1)
    headers = {"idempotency-key": "twins"}
    answers = at_once(
        30, lambda _: Api().request("POST", "/v1/sandboxes", request_body, headers=headers)
    )
    assert {answer.status for answer in answers} == {202}
    assert len({answer.body["sandboxId"] for answer in answers}) == 1
    assert Workspace.objects.count() == 1
