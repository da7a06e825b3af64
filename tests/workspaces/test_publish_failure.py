"""The queue cannot be reached: a 502, and each failure write stands by itself."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from builds.job_sweeper import repair_attempts
from tests.conftest import Api
from tests.support.refused_writes import refused_writes
from workspaces.models import Attempt, BuildJob, Sandbox, WorkspaceEvent

IDS = ("sandboxId", "workspaceId", "attemptId", "runId", "jobId")


def states() -> tuple[str, str, str]:
    return (
        BuildJob.objects.get().status,
        Attempt.objects.get().status,
        Sandbox.objects.get().status,
    )


@pytest.mark.django_db
@pytest.mark.usefixtures("unreachable_broker")
@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/workspaces"])
def test_a_failed_publish_is_a_502_that_names_what_was_recorded(
    api: Api, request_body: dict[str, Any], path: str
) -> None:
    answer = api.post(path, request_body, expect=502)
    assert answer.body["code"] == "queue-publish-failed"
    assert "nobody:nothing" not in answer.content.decode()
    assert all(answer.body[name] for name in IDS)
    assert states() == ("failed", "failed", "failed")
    job, attempt = BuildJob.objects.get(), Attempt.objects.get()
    assert job.error_code == attempt.error_code == "queue-publish-failed"
    assert job.finished_at
    assert attempt.finished_at
    assert str(job.pk) == answer.body["jobId"]
    assert WorkspaceEvent.objects.filter(type="attempt.failed").count() == 1
    sandbox = api.get(f"/v1/sandboxes/{answer.body['sandboxId']}").body
    assert sandbox["status"] == "failed"
    assert sandbox["reason"]["code"] == sandbox["error"]["code"] == "queue-publish-failed"


@pytest.mark.django_db
def test_a_workspace_whose_publish_failed_can_be_started_again(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    url = settings.RABBITMQ_URL
    settings.RABBITMQ_URL = "amqp://nobody:nothing@127.0.0.1:1/"
    failed = api.post("/v1/workspaces", request_body, expect=502).body
    settings.RABBITMQ_URL = url
    api.post("/v1/sandboxes", {**request_body, "workspaceId": failed["workspaceId"]}, expect=202)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("unreachable_broker")
def test_job_and_sandbox_fail_although_the_attempt_cannot_be_written(
    api: Api, request_body: dict[str, Any]
) -> None:
    with refused_writes("workspaces_attempt"):
        answer = api.post("/v1/sandboxes", request_body, expect=502)
        assert answer.body["code"] == "queue-publish-failed"
        assert states() == ("failed", "queued", "failed")
    assert repair_attempts() == 1
    assert states() == ("failed", "failed", "failed")
    assert Attempt.objects.get().error_code == "queue-publish-failed"
    assert repair_attempts() == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("unreachable_broker")
def test_the_job_fails_although_the_sandbox_cannot_be_written(
    api: Api, request_body: dict[str, Any]
) -> None:
    with refused_writes("workspaces_sandbox"):
        api.post("/v1/sandboxes", request_body, expect=502)
        assert BuildJob.objects.get().status == "failed"
    # An attempt and the status people see of it change together or not at all.
    assert repair_attempts() == 1
    assert states() == ("failed", "failed", "failed")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("unreachable_broker")
def test_attempt_and_sandbox_fail_although_the_job_cannot_be_written(
    api: Api, request_body: dict[str, Any]
) -> None:
    with refused_writes("workspaces_buildjob"):
        answer = api.post("/v1/sandboxes", request_body, expect=502)
        assert states() == ("queued", "failed", "failed")
    shown = api.get(f"/v1/sandboxes/{answer.body['sandboxId']}").body
    assert shown["status"] == "failed"
    assert shown["error"]["code"] == "queue-publish-failed"
    # A job whose attempt is over must not start a workspace that nobody waits for.
    repair_attempts()
    assert states() == ("failed", "failed", "failed")
    assert BuildJob.objects.get().error_code == "queue-publish-failed"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("unreachable_broker")
def test_a_remembered_failure_does_not_depend_on_the_other_writes(
    api: Api, request_body: dict[str, Any]
) -> None:
    key = {"idempotency-key": "k"}
    with refused_writes("workspaces_attempt"):
        first = api.post("/v1/sandboxes", request_body, headers=key, expect=502).body
    again = api.post("/v1/sandboxes", request_body, headers=key, expect=502).body
    assert again["sandboxId"] == first["sandboxId"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("unreachable_broker")
def test_the_same_sandbox_is_tried_again_although_its_failure_could_not_be_remembered(
    api: Api, request_body: dict[str, Any]
) -> None:
    key = {"idempotency-key": "k"}
    with refused_writes("workspaces_sandboxrequest", when="NEW.publish_failed"):
        first = api.post("/v1/sandboxes", request_body, headers=key, expect=502).body
    assert states() == ("failed", "failed", "failed")
    again = api.post("/v1/sandboxes", request_body, headers=key, expect=502).body
    assert again["sandboxId"] == first["sandboxId"]


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_is_quicker_than_the_failing_publish_keeps_the_job(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    """A broker that takes the connection, lets a worker claim the job, and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))

    def broker() -> None:
        client, _ = server.accept()
        job = BuildJob.objects.get()
        BuildJob.objects.claim(job.pk, worker_id="worker-a", lease=timedelta(minutes=1))
        connection.close()
        client.close()

    thread = threading.Thread(target=broker)
    thread.start()
    settings.RABBITMQ_URL = f"amqp://a:b@127.0.0.1:{server.getsockname()[1]}/"
    try:
        answer = api.post("/v1/sandboxes", request_body, expect=202)
    finally:
        thread.join()
        server.close()
    assert states() == ("running", "queued", "queued")
    shown = api.get(f"/v1/sandboxes/{answer.body['sandboxId']}").body
    assert shown["status"] == "running"
    assert shown["reason"]["code"] == "building"
