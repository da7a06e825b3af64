"""Reading one workspace or one sandbox."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db.models.sql.compiler import SQLCompiler
from pytest_django import DjangoAssertNumQueries
from pytest_django.fixtures import Settings

from tests.conftest import OWNER, Api
from tests.factories import claim, make_job
from tests.support.engines import make_engine
from workspaces.lifecycle.attempt_states import ssh_endpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def started(api: Api, request_body: dict[str, Any]) -> dict[str, Any]:
    """A workspace that was just created."""
    body: dict[str, Any] = api.post("/v1/workspaces", {**request_body, "name": "Mine"}).body
    return body


def test_a_workspace_shows_itself_and_its_latest_sandbox(
    api: Api, started: dict[str, Any], request_body: dict[str, Any]
) -> None:
    body = api.get(f"/v1/workspaces/{started['workspaceId']}").body
    for name in ("workspaceId", "sandboxId", "name", "repository", "tag", "registryId", "status"):
        assert body[name] == started[name]
    assert body["ownerUserId"] == OWNER
    assert body["spec"]["harness"] == {"id": "shell"}
    assert body["createdAt"].endswith("Z")
    assert len(body["createdAt"]) == len("2026-01-02T03:04:05.678Z")
    assert "finishedAt" not in body


def test_a_sandbox_shows_all_its_identifiers(api: Api, started: dict[str, Any]) -> None:
    body = api.get(f"/v1/sandboxes/{started['sandboxId']}").body
    for name in ("sandboxId", "workspaceId", "attemptId", "runId", "jobId", "name", "status"):
        assert body[name] == started[name]
    assert body["relation"] == "launch"


@pytest.mark.parametrize("query", ["", f"?ownerUserId={OWNER}", f"?userId={OWNER}"])
@pytest.mark.parametrize("kind", ["workspaces", "sandboxes"])
def test_the_owner_may_be_named_and_then_has_to_match(
    api: Api, started: dict[str, Any], kind: str, query: str
) -> None:
    own = {"workspaces": started["workspaceId"], "sandboxes": started["sandboxId"]}[kind]
    api.get(f"/v1/{kind}/{own}{query}")


@pytest.mark.parametrize("kind", ["workspaces", "sandboxes"])
@pytest.mark.parametrize("name", ["ownerUserId", "userId"])
def test_what_is_foreign_is_as_absent_as_what_is_unknown(
    api: Api, started: dict[str, Any], kind: str, name: str
) -> None:
    own = {"workspaces": started["workspaceId"], "sandboxes": started["sandboxId"]}[kind]
    foreign = api.get(f"/v1/{kind}/{own}?{name}=usr_other", expect=404).body
    unknown = api.get(f"/v1/{kind}/{uuid.uuid4()}?{name}=usr_other", expect=404).body
    del foreign["requestId"], unknown["requestId"]
    assert foreign == unknown
    assert foreign["code"] == f"{'workspace' if kind == 'workspaces' else 'sandbox'}-not-found"


@pytest.mark.parametrize("kind", ["workspaces", "sandboxes"])
@pytest.mark.parametrize("query", ["?x=1", "?ownerUserId=", "?ownerUserId=a&userId=b", "?limit=5"])
def test_a_read_takes_nothing_but_the_owner(
    api: Api, started: dict[str, Any], kind: str, query: str
) -> None:
    own = {"workspaces": started["workspaceId"], "sandboxes": started["sandboxId"]}[kind]
    api.get(f"/v1/{kind}/{own}{query}", expect=400)


def test_a_workspace_id_is_no_sandbox_id(api: Api, started: dict[str, Any]) -> None:
    api.get(f"/v1/sandboxes/{started['workspaceId']}", expect=404)


def test_a_queued_workspace_says_why_it_is_not_ready(api: Api, started: dict[str, Any]) -> None:
    reason = api.get(f"/v1/workspaces/{started['workspaceId']}").body["reason"]
    assert reason["code"] == "no-worker"
    assert set(reason) == {"code", "message", "since", "next"}


def test_absent_members_are_left_out_and_never_null(api: Api, started: dict[str, Any]) -> None:
    for path in (
        f"/v1/workspaces/{started['workspaceId']}",
        f"/v1/sandboxes/{started['sandboxId']}",
    ):
        assert None not in api.get(path).body.values()


def test_an_ipv6_gateway_stands_in_brackets(settings: Settings) -> None:
    settings.SVC_SSH_HOST, settings.SVC_SSH_PORT = "::1", 22
    workspace_id = uuid.uuid4()
    assert ssh_endpoint(workspace_id) == f"ssh://ws-{workspace_id}@[::1]:22"


def test_a_read_takes_few_queries(
    api: Api, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    job = make_job()
    with django_assert_num_queries(5):
        api.get(f"/v1/workspaces/{job.attempt.workspace_id}")
    with django_assert_num_queries(5):
        api.get(f"/v1/sandboxes/{job.attempt.sandbox_id}")


def test_who_polls_has_no_statement_compiled_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_engine("first")
    jobs = [make_job(engine_name="first") for _ in range(2)]
    claimed = [make_job() for _ in range(2)]
    for job in claimed:
        claim(job)
    paths = [
        [
            f"/v1/{kind}{owner}"
            for job in (queued, running)
            for kind in (
                f"workspaces/{job.attempt.workspace_id}",
                f"sandboxes/{job.attempt.sandbox_id}",
            )
            for owner in ("", "?ownerUserId=usr_test")
        ]
        for queued, running in zip(jobs, claimed, strict=True)
    ]
    for path in paths[0]:
        api.get(path)
    monkeypatch.delattr(SQLCompiler, "as_sql")
    for path in paths[1]:
        assert api.get(path).body["status"] in ("queued", "running")
