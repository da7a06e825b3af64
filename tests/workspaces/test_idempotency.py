"""Requests that carry an idempotency key."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from tests.conftest import OWNER, Answer, Api
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.models import Attempt, BuildJob, Sandbox, SandboxRequest, Workspace

KEY = {"idempotency-key": "k-1"}


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/workspaces"])
def test_a_repeated_request_gets_the_first_answer_again(
    api: Api, request_body: dict[str, Any], path: str
) -> None:
    first = api.post(path, request_body, headers=KEY)
    job = BuildJob.objects.get(pk=first.body["jobId"])
    fail_unclaimed_job(job, code="build-command-failed", message="It failed.")
    again = api.post(path, request_body, headers=KEY)
    assert again.body == first.body
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert api.get(again.headers["location"]).body["status"] == "failed"
    assert Sandbox.objects.count() == Workspace.objects.count() == BuildJob.objects.count() == 1


@pytest.mark.django_db
def test_the_order_of_members_and_blanks_do_not_make_another_request(
    api: Api, request_body: dict[str, Any]
) -> None:
    first = api.post("/v1/sandboxes", request_body, headers=KEY)
    turned = json.dumps(dict(reversed(request_body.items())), indent=3).encode()
    assert api.post("/v1/sandboxes", raw=turned, headers=KEY).body == first.body
    padded = {"idempotency-key": "  k-1 "}
    assert api.post("/v1/sandboxes", request_body, headers=padded).body == first.body


@pytest.mark.django_db
def test_another_body_under_the_key_is_a_409(api: Api, request_body: dict[str, Any]) -> None:
    api.post("/v1/sandboxes", request_body, headers=KEY)
    answer = api.post("/v1/sandboxes", {**request_body, "tag": "v2"}, headers=KEY, expect=409)
    assert answer.body["code"] == "idempotency-key-reused"
    assert answer.codes == {"idempotency-key": "idempotency-key-reused"}
    assert Sandbox.objects.count() == 1


@pytest.mark.django_db
def test_the_key_is_looked_at_before_the_registry(api: Api, request_body: dict[str, Any]) -> None:
    api.post("/v1/sandboxes", request_body, headers=KEY)
    other = {**request_body, "registryId": "elsewhere", "spec": {"harness": {"id": "nothing"}}}
    api.post("/v1/sandboxes", other, headers=KEY, expect=409)


@pytest.mark.django_db
def test_keys_belong_to_their_owner(api: Api, request_body: dict[str, Any]) -> None:
    first = api.post("/v1/sandboxes", request_body, headers=KEY)
    other = {**request_body, "ownerUserId": "usr_other", "tag": "v2"}
    second = api.post("/v1/sandboxes", other, headers=KEY)
    assert second.body["sandboxId"] != first.body["sandboxId"]
    assert "idempotency-replayed" not in second.headers


@pytest.mark.django_db
def test_a_request_that_was_refused_leaves_its_key_free(
    api: Api, request_body: dict[str, Any]
) -> None:
    wrong = {**request_body, "registryId": "other"}
    api.post("/v1/sandboxes", wrong, headers=KEY, expect=404)
    api.post("/v1/sandboxes", request_body, headers=KEY, expect=202)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "key", ["", "  ", "a" * 256, "a\x00b", "a\x7f", "a\x1bb", "\x85", "a\u009fb"]
)
def test_a_key_that_is_garbage_is_a_400(api: Api, request_body: dict[str, Any], key: str) -> None:
    answer = api.post("/v1/sandboxes", request_body, headers={"idempotency-key": key}, expect=400)
    assert set(answer.codes) == {"idempotency-key"}
    assert not Sandbox.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "key", ["a" * 255, "'; DROP TABLE workspaces_sandboxrequest; --", "é", "🙂"]
)
def test_any_other_key_is_taken(api: Api, request_body: dict[str, Any], key: str) -> None:
    first = api.post("/v1/sandboxes", request_body, headers={"idempotency-key": key})
    again = api.post("/v1/sandboxes", request_body, headers={"idempotency-key": key})
    assert again.body == first.body


@pytest.mark.django_db
@pytest.mark.usefixtures("unreachable_broker")
def test_a_repeated_request_tries_the_same_sandbox_again_while_the_queue_is_away(
    api: Api, request_body: dict[str, Any]
) -> None:
    first = api.post("/v1/sandboxes", request_body, headers=KEY, expect=502).body
    again = api.post("/v1/sandboxes", request_body, headers=KEY, expect=502).body
    assert again["code"] == first["code"] == "queue-publish-failed"
    assert again["sandboxId"] == first["sandboxId"] == str(Sandbox.objects.get().pk)
    assert again["workspaceId"] == first["workspaceId"]
    assert again["attemptId"] != first["attemptId"]


@pytest.mark.django_db(transaction=True)
def test_repeated_requests_start_one_new_attempt_once_the_queue_is_back(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    url = settings.RABBITMQ_URL
    settings.RABBITMQ_URL = "amqp://nobody:nothing@127.0.0.1:1/"
    failed = api.post("/v1/sandboxes", request_body, headers=KEY, expect=502).body
    settings.RABBITMQ_URL = url

    def send(_: int) -> Answer:
        try:
            return Api().post("/v1/sandboxes", request_body, headers=KEY, expect=202)
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(send, range(6)))
    assert len({answer.content for answer in answers}) == 1
    started = answers[0].body
    assert started["sandboxId"] == failed["sandboxId"]
    assert started["attemptId"] != failed["attemptId"]
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 5
    assert (Sandbox.objects.count(), Attempt.objects.count()) == (1, 2)
    assert BuildJob.objects.filter(status="queued").count() == 1


@pytest.mark.django_db
def test_a_repeated_request_does_not_start_a_workspace_that_was_deleted_meanwhile(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    url = settings.RABBITMQ_URL
    settings.RABBITMQ_URL = "amqp://nobody:nothing@127.0.0.1:1/"
    failed = api.post("/v1/sandboxes", request_body, headers=KEY, expect=502).body
    settings.RABBITMQ_URL = url
    path = f"/v1/workspaces/{failed['workspaceId']}?ownerUserId={OWNER}"
    api.request("DELETE", path, expect=202)
    answer = api.post("/v1/sandboxes", request_body, headers=KEY, expect=409)
    assert answer.body["code"] in ("workspace-deleting", "workspace-deleted")


@pytest.mark.django_db(transaction=True)
def test_thirty_identical_requests_at_once_start_one_sandbox(request_body: dict[str, Any]) -> None:
    def send(_: int) -> Answer:
        try:
            return Api().post("/v1/sandboxes", request_body, headers=KEY, expect=202)
        finally:
            connection.close()

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(send, range(30)))
    assert len({answer.content for answer in answers}) == 1
    replayed = [answer for answer in answers if "idempotency-replayed" in answer.headers]
    assert len(replayed) == 29
    for model in (Sandbox, Workspace, Attempt, BuildJob, SandboxRequest):
        assert model.objects.count() == 1, model


@pytest.mark.django_db(transaction=True)
def test_different_requests_at_once_under_one_key_start_one_sandbox(
    request_body: dict[str, Any],
) -> None:
    def send(number: int) -> int:
        try:
            body = {**request_body, "tag": f"v{number}"}
            return Api().request("POST", "/v1/sandboxes", body, headers=KEY).status
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        statuses = sorted(pool.map(send, range(8)))
    assert statuses == [202] + [409] * 7
    assert Sandbox.objects.count() == 1
