"""Starting sandboxes and creating workspaces."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pika
import pytest
from django.conf import settings as django_settings
from pytest_django.fixtures import Settings

from tests.conftest import OWNER, Answer, Api
from tests.support.broker_parameters import patient_parameters
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.models import (
    Attempt,
    BuildJob,
    RuntimeInstance,
    Sandbox,
    SandboxRequest,
    Workspace,
    WorkspaceEvent,
)

pytestmark = pytest.mark.django_db

CREATORS = pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/workspaces"])
IDS = ("sandboxId", "workspaceId", "attemptId", "runId", "jobId")


def assert_nothing_written() -> None:
    for model in (Workspace, Sandbox, Attempt, BuildJob, WorkspaceEvent, SandboxRequest):
        assert not model.objects.exists(), model


@CREATORS
def test_a_sound_request_is_accepted_and_queued(
    api: Api, request_body: dict[str, Any], path: str
) -> None:
    answer = api.post(path, request_body, expect=202)
    body = answer.body
    assert all(uuid.UUID(body[name]).version == 7 for name in IDS)
    assert len({body[name] for name in IDS}) == len(IDS)
    assert body["status"] == "queued"
    assert {name: body[name] for name in ("registryId", "repository", "tag")} == {
        name: request_body[name] for name in ("registryId", "repository", "tag")
    }
    last = "sandboxId" if path == "/v1/sandboxes" else "workspaceId"
    assert answer.headers["location"] == f"{path}/{body[last]}"
    assert api.get(answer.headers["location"]).body["status"] == "queued"
    assert "idempotency-replayed" not in answer.headers


@CREATORS
def test_the_rows_of_a_request_are_all_there_and_queued(
    api: Api, request_body: dict[str, Any], path: str
) -> None:
    body = api.post(path, request_body).body
    sandbox = Sandbox.objects.get(pk=body["sandboxId"])
    attempt = Attempt.objects.get(pk=body["attemptId"])
    job = BuildJob.objects.get(pk=body["jobId"])
    workspace = Workspace.objects.get(pk=body["workspaceId"])
    assert (sandbox.status, attempt.status, job.status) == ("queued", "queued", "queued")
    assert str(attempt.run_id) == body["runId"]
    assert attempt.sandbox == sandbox
    assert attempt.spec == sandbox.spec
    assert attempt.requested_by == workspace.owner_user_id == sandbox.owner_user_id == OWNER
    assert job.attempt == attempt
    assert job.attempt_count == 0
    assert workspace.latest_sandbox == sandbox
    assert sandbox.latest_attempt == attempt
    assert (attempt.relation, attempt.trigger_type) == ("launch", "api")
    assert not RuntimeInstance.objects.exists()
    assert list(WorkspaceEvent.objects.order_by("id").values_list("type", flat=True)) == [
        "workspace.created",
        "attempt.queued",
    ]


def test_the_stored_spec_has_every_default_filled_in(
    api: Api, request_body: dict[str, Any]
) -> None:
    body = api.post("/v1/sandboxes", request_body).body
    spec = api.get(f"/v1/sandboxes/{body['sandboxId']}").body["spec"]
    assert spec["runtime"]["workingDirectory"] == "/workspace/repo"
    assert spec["customization"]["defaultShell"] == "bash"
    assert spec["harness"] == {"id": "shell"}


def take_message(queue: str, message_id: str) -> tuple[pika.BasicProperties, bytes]:
    """Take messages off ``queue`` until the one with ``message_id`` comes."""
    connection = pika.BlockingConnection(patient_parameters(django_settings.RABBITMQ_URL))
    try:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            assert method, "the message is not on the queue"
            assert properties
            assert body
            if properties.message_id == message_id:
                return properties, body
    finally:
        connection.close()


@CREATORS
def test_the_message_carries_the_job_id_and_is_persistent(
    api: Api, request_body: dict[str, Any], path: str, build_queue: str
) -> None:
    job_id = api.post(path, request_body).body["jobId"]
    properties, body = take_message(build_queue, job_id)
    assert json.loads(body) == {"jobId": job_id}
    assert properties.delivery_mode == 2
    assert properties.content_type == "application/json"


def test_a_workspace_is_created_under_its_name(api: Api, request_body: dict[str, Any]) -> None:
    body = api.post("/v1/workspaces", {**request_body, "name": "  My   first  one "}).body
    assert body["name"] == "My first one"
    assert api.get(f"/v1/workspaces/{body['workspaceId']}").body["name"] == "My first one"


def test_a_name_is_inferred_from_repository_tag_and_ref(
    api: Api, request_body: dict[str, Any]
) -> None:
    spec = {**request_body["spec"], "sources": {"workspace": {"url": "https://e.org/a.git"}}}
    spec["sources"]["workspace"]["ref"] = "main"
    wanted = {**request_body, "repository": "team/my-repo_x", "tag": "v1.0", "spec": spec}
    assert api.post("/v1/workspaces", wanted).body["name"] == "My Repo X V1 0 Main"


def test_null_members_count_as_absent(api: Api, request_body: dict[str, Any]) -> None:
    optional = ("name", "sourceSelection", "dotfilesSelection", "credentials", "workspaceId")
    api.post("/v1/sandboxes", {**request_body, **dict.fromkeys(optional), "userId": None})


@pytest.mark.parametrize("name", ["ownerUserId", "userId"])
@pytest.mark.parametrize("place", ["body", "query"])
def test_the_owner_may_stand_in_body_or_query_under_both_names(
    api: Api, request_body: dict[str, Any], name: str, place: str
) -> None:
    del request_body["ownerUserId"]
    path = f"/v1/sandboxes?{name}=usr_x" if place == "query" else "/v1/sandboxes"
    body = {**request_body, **({name: "usr_x"} if place == "body" else {})}
    started = api.post(path, body).body
    assert Sandbox.objects.get(pk=started["sandboxId"]).owner_user_id == "usr_x"


def test_an_owner_that_is_given_twice_has_to_be_the_same(
    api: Api, request_body: dict[str, Any]
) -> None:
    api.post(f"/v1/sandboxes?userId={OWNER}", request_body)
    answer = api.post("/v1/sandboxes?userId=other", request_body, expect=400)
    assert answer.codes == {"/ownerUserId": "owner-ambiguous"}
    answer = api.post("/v1/sandboxes", {**request_body, "userId": "other"}, expect=400)
    assert answer.codes == {"/ownerUserId": "owner-ambiguous"}
    assert Sandbox.objects.count() == 1


@pytest.mark.parametrize(
    "owner", ["usr_ü", "用户", "👩", "Ω" * 200, "a/b?c&d", "' OR 1=1 --", "%00"]
)
def test_owners_are_free_strings(api: Api, request_body: dict[str, Any], owner: str) -> None:
    body = api.post("/v1/workspaces", {**request_body, "ownerUserId": owner}).body
    path = f"/v1/workspaces/{body['workspaceId']}"
    assert api.get(path).body["ownerUserId"] == owner


@pytest.mark.parametrize(
    ("owner", "code"),
    [
        ("", "blank"),
        (" \u3000\u00a0", "blank"),
        ("a" * 201, "max-length"),
        ("a\u0000b", "invalid-character"),
        ("a\u0007b", "control-character"),
        ("a\u202eb", "control-character"),
        ("a\u2028b", "control-character"),
        ("a\u200bb", "control-character"),
        (5, "wrong-type"),
        (True, "wrong-type"),
        ([], "wrong-type"),
        ({"a": 1}, "wrong-type"),
    ],
)
def test_an_owner_that_cannot_be_one_is_refused(
    api: Api, request_body: dict[str, Any], owner: Any, code: str
) -> None:
    answer = api.post("/v1/sandboxes", {**request_body, "ownerUserId": owner}, expect=400)
    assert answer.codes == {"/ownerUserId": code}
    assert_nothing_written()


def test_an_unknown_registry_is_a_404(api: Api, request_body: dict[str, Any]) -> None:
    answer = api.post("/v1/sandboxes", {**request_body, "registryId": "other"}, expect=404)
    assert answer.body["code"] == "registry-not-found"
    assert answer.codes == {"/registryId": "unknown-registry"}
    assert_nothing_written()


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("sourceSelection", {"provider": "github", "installationId": "1"}),
        ("dotfilesSelection", {"provider": "github", "installationId": "1"}),
    ],
)
def test_a_selection_without_a_source_hosting_app_is_a_503(
    api: Api, request_body: dict[str, Any], member: str, value: dict[str, str]
) -> None:
    selection = {**value, "installationRepositoryId": "2"}
    answer = api.post("/v1/sandboxes", {**request_body, member: selection}, expect=503)
    assert answer.body["code"] == "scm-app-unconfigured"
    assert answer.codes == {f"/{member}": "scm-app-unconfigured"}
    assert_nothing_written()


def test_credentials_that_do_not_exist_are_a_404(api: Api, request_body: dict[str, Any]) -> None:
    credentials = {"profileId": "p", "claude": "c"}
    answer = api.post("/v1/sandboxes", {**request_body, "credentials": credentials}, expect=404)
    assert answer.body["code"] == "credentials-not-found"
    assert set(answer.codes) == {"/credentials/profileId", "/credentials/claude"}
    request_body["spec"]["credentials"] = credentials
    answer = api.post("/v1/sandboxes", request_body, expect=404)
    assert set(answer.codes) == {"/spec/credentials/profileId", "/spec/credentials/claude"}
    assert_nothing_written()


def test_resources_above_the_ceiling_are_refused(
    api: Api, request_body: dict[str, Any], settings: Settings
) -> None:
    settings.WORKSPACE_MAX_MEMORY_MB, settings.WORKSPACE_MAX_CPUS = 1000, 1.5
    resources = {"memoryMb": 1001, "cpus": 1.6, "pids": 100}
    request_body["spec"]["runtime"] = {"resources": resources}
    answer = api.post("/v1/sandboxes", request_body, expect=400)
    assert answer.codes == {
        "/spec/runtime/resources/memoryMb": "above-ceiling",
        "/spec/runtime/resources/cpus": "above-ceiling",
    }
    assert_nothing_written()


def test_packages_are_stored_under_the_names_of_the_distribution(
    api: Api, request_body: dict[str, Any]
) -> None:
    request_body["spec"]["tooling"] = {"packages": [{"id": "rg"}, {"id": "ripgrep"}]}
    body = api.post("/v1/sandboxes", request_body).body
    spec = Sandbox.objects.get(pk=body["sandboxId"]).spec
    assert spec["tooling"]["packages"] == [{"id": "ripgrep"}]


def end(answer: Answer) -> None:
    """Let the sandbox of ``answer`` fail."""
    job = BuildJob.objects.get(pk=answer.body["jobId"])
    assert fail_unclaimed_job(job, code="build-command-failed", message="It failed.")


def test_a_workspace_that_ended_can_be_started_again(
    api: Api, request_body: dict[str, Any]
) -> None:
    first = api.post("/v1/workspaces", request_body)
    end(first)
    again = {**request_body, "workspaceId": first.body["workspaceId"]}
    second = api.post("/v1/sandboxes", again)
    assert second.body["workspaceId"] == first.body["workspaceId"]
    assert second.body["sandboxId"] != first.body["sandboxId"]
    assert Workspace.objects.count() == 1
    assert api.get(f"/v1/sandboxes/{second.body['sandboxId']}").body["relation"] == "rebuild"
    end(second)
    third = api.post("/v1/sandboxes", {**again, "relation": "resume"})
    assert api.get(f"/v1/sandboxes/{third.body['sandboxId']}").body["relation"] == "resume"
    assert api.get(f"/v1/sandboxes/{first.body['sandboxId']}").body["status"] == "failed"


def test_a_name_renames_the_workspace_that_is_started_again(
    api: Api, request_body: dict[str, Any]
) -> None:
    first = api.post("/v1/workspaces", {**request_body, "name": "Before"})
    path = f"/v1/workspaces/{first.body['workspaceId']}"
    again = {**request_body, "workspaceId": first.body["workspaceId"]}
    end(first)
    second = api.post("/v1/sandboxes", again)
    assert second.body["name"] == api.get(path).body["name"] == "Before"
    end(second)
    third = api.post("/v1/sandboxes", {**again, "name": "After"})
    assert third.body["name"] == api.get(path).body["name"] == "After"
    api.post("/v1/sandboxes", {**again, "name": "Too early"}, expect=409)
    assert api.get(path).body["name"] == "After"


def test_a_workspace_that_is_not_over_cannot_be_started_again(
    api: Api, request_body: dict[str, Any]
) -> None:
    first = api.post("/v1/workspaces", request_body).body
    again = {**request_body, "workspaceId": first["workspaceId"]}
    answer = api.post("/v1/sandboxes", again, expect=409)
    assert answer.body["code"] == "workspace-active"
    assert Sandbox.objects.count() == 1


def test_a_foreign_workspace_is_as_absent_as_an_unknown_one(
    api: Api, request_body: dict[str, Any]
) -> None:
    first = api.post("/v1/workspaces", request_body).body
    answers = [
        api.post(
            "/v1/sandboxes",
            {**request_body, "ownerUserId": "usr_other", "workspaceId": workspace_id},
            expect=404,
        ).body
        for workspace_id in (first["workspaceId"], str(uuid.uuid4()))
    ]
    for answer in answers:
        del answer["requestId"]
    assert answers[0] == answers[1]
    assert Sandbox.objects.count() == 1


@pytest.mark.parametrize(
    "value", ["x", 5, True, "{3f2504e0-4f89-11d3-9a0c-0305e82c3301}", "a" * 5000, ["x"]]
)
def test_a_workspace_id_that_is_malformed_is_refused(
    api: Api, request_body: dict[str, Any], value: Any
) -> None:
    answer = api.post("/v1/sandboxes", {**request_body, "workspaceId": value}, expect=400)
    assert answer.codes == {"/workspaceId": "invalid"}


def test_a_relation_needs_a_workspace(api: Api, request_body: dict[str, Any]) -> None:
    answer = api.post(
        "/v1/sandboxes", {**request_body, "relation": "retry", "tag": "!"}, expect=400
    )
    assert answer.codes == {"/relation": "relation-without-workspace", "/tag": "invalid-format"}
    assert_nothing_written()


@CREATORS
def test_a_create_takes_no_parameters_but_the_owner(
    api: Api, request_body: dict[str, Any], path: str
) -> None:
    answer = api.post(f"{path}?ownerUserID=a&dryRun=1", request_body, expect=400)
    assert answer.codes == {"ownerUserID": "unknown-parameter", "dryRun": "unknown-parameter"}
    assert 'Did you mean "ownerUserId"?' in answer.body["errors"][0]["detail"]
    assert_nothing_written()


def test_creating_a_workspace_does_not_take_a_workspace(
    api: Api, request_body: dict[str, Any]
) -> None:
    body = {**request_body, "workspaceId": str(uuid.uuid4())}
    answer = api.post("/v1/workspaces", body, expect=400)
    assert answer.codes == {"/workspaceId": "unknown-member"}


def test_members_of_other_planners_are_ignored_and_listed(
    api: Api, request_body: dict[str, Any]
) -> None:
    switches = {"enableDaemon": True, "enableX11": {"any": ["value"]}}
    request_body["spec"]["customization"] = {"defaultShell": "zsh", **switches}
    key = {"idempotency-key": "switches"}
    body = api.post("/v1/sandboxes", request_body, headers=key).body
    assert body["warnings"] == [
        {
            "pointer": f"/spec/customization/{name}",
            "code": "member-ignored",
            "detail": "A member of another planner; it was ignored.",
        }
        for name in switches
    ]
    assert api.post("/v1/sandboxes", request_body, headers=key).body == body
    spec = api.get(f"/v1/workspaces/{body['workspaceId']}").body["spec"]
    assert spec["customization"]["defaultShell"] == "zsh"
    assert not switches.keys() & spec["customization"].keys()
    del request_body["spec"]["customization"]
    assert api.post("/v1/workspaces", request_body).body["warnings"] == []


@pytest.mark.parametrize("name", ["enable", "enabledX", "Enablex", "enable_x", "enableX\n"])
def test_only_switches_of_other_planners_are_ignored(
    api: Api, request_body: dict[str, Any], name: str
) -> None:
    request_body["spec"]["customization"] = {name: True}
    answer = api.post("/v1/sandboxes", request_body, expect=400)
    assert set(answer.codes.values()) == {"unknown-member"}
    request_body["spec"] = {"harness": {"id": "shell"}, "runtime": {"enableDaemon": True}}
    assert api.post("/v1/sandboxes", request_body, expect=400).codes == {
        "/spec/runtime/enableDaemon": "unknown-member"
    }
