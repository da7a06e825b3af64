"""Where the SSH gateway finds a workspace."""

from __future__ import annotations

import uuid

import pytest
from pytest_django.fixtures import Settings

from tests.conftest import Api
from tests.factories import OWNER, make_job
from tests.runs.ready import ready_attempt
from workspaces.models import RuntimeInstance
from workspaces.services import stop_runtime

pytestmark = pytest.mark.django_db
TOKEN = {"x-svc-gateway-token": "secret"}
HEADERS = {**TOKEN, "x-svc-principal-id": OWNER}


@pytest.fixture(autouse=True)
def _token(settings: Settings) -> None:
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = "secret"


def path(workspace_id: uuid.UUID) -> str:
    return f"/v1/workspaces/{workspace_id}/ssh-target"


def test_a_ready_workspace_is_told_to_its_owners_session(api: Api) -> None:
    directory = {"runtime": {"workingDirectory": "/workspace/repo"}}
    attempt = ready_attempt(spec={"harness": {"id": "shell"}, **directory})
    runtime = RuntimeInstance.objects.get(attempt=attempt)
    assert api.get(path(attempt.workspace_id), headers=HEADERS).body == {
        "workspaceId": str(attempt.workspace_id),
        "attemptId": str(attempt.pk),
        "runtime": {
            "adapter": "docker",
            "resourceId": runtime.resource_id,
            "reference": runtime.reference,
            "status": "running",
            "endpoint": f"docker-exec://{runtime.resource_id}",
        },
        "workingDirectory": "/workspace/repo",
    }


def test_a_foreign_workspace_is_as_absent_as_an_unknown_one(api: Api) -> None:
    workspace_id = ready_attempt().workspace_id
    foreign = {**TOKEN, "x-svc-principal-id": "usr_b"}
    answers = [
        api.get(path(workspace_id), headers=foreign, expect=404),
        api.get(path(uuid.uuid4()), headers=HEADERS, expect=404),
        api.get(f"{path(workspace_id)}?ownerUserId=usr_b", headers=HEADERS, expect=404),
    ]
    assert len({(answer.body["code"], answer.body["detail"]) for answer in answers}) == 1


def test_a_workspace_that_is_not_ready_says_why(api: Api) -> None:
    answer = api.get(path(make_job().attempt.workspace_id), headers=HEADERS, expect=409)
    assert answer.body["code"] == "workspace-not-ready"
    assert set(answer.body["reason"]) == {"code", "message", "since", "next"}
    attempt = ready_attempt()
    stop_runtime(attempt, code="stopped", message="Stopped.")
    answer = api.get(path(attempt.workspace_id), headers=HEADERS, expect=409)
    assert answer.body["code"] == "workspace-not-ready"


def test_the_token_comes_first_and_the_principal_next(api: Api, settings: Settings) -> None:
    unknown = path(uuid.uuid4())
    principal = {"x-svc-principal-id": OWNER}
    for headers in ({}, principal, {**principal, "x-svc-gateway-token": "wrong"}):
        answer = api.get(unknown, headers=headers, expect=401)
        assert answer.body["code"] == "gateway-token-invalid"
    for headers in (TOKEN, {**TOKEN, "x-svc-principal-id": " "}):
        answer = api.get(unknown, headers=headers, expect=401)
        assert answer.body["code"] == "principal-missing"
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = ""
    answer = api.get(unknown, headers=principal, expect=503)
    assert answer.body["code"] == "gateway-token-unset"


@pytest.mark.parametrize("principal", ["a\0b", "a\x1bb", "a" * 201])
def test_what_no_owner_is_called_is_refused(api: Api, principal: str) -> None:
    headers = {**TOKEN, "x-svc-principal-id": principal}
    answer = api.get(path(uuid.uuid4()), headers=headers, expect=400)
    assert set(answer.codes) == {"x-svc-principal-id"}


def test_a_principal_beyond_ascii_comes_in_utf8(api: Api) -> None:
    workspace = make_job().attempt.workspace
    workspace.owner_user_id = "usr_\u00e9\u6f22"
    workspace.save()
    wire = workspace.owner_user_id.encode().decode("latin-1")
    headers = {**TOKEN, "x-svc-principal-id": wire}
    api.get(path(workspace.pk), headers=headers, expect=409)
