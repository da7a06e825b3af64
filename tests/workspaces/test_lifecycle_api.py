"""What the API answers when workspaces are to be stopped, started or deleted."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from runs.models import Run
from tests.conformance import codes_told
from tests.conftest import OWNER, Answer, Api
from tests.factories import LEASE, claim, make_job, make_worker
from tests.runs.ready import ready_attempt
from workspaces import services as workspaces
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.lifecycle.transitions import (
    TransitionRequest,
    expire_workspaces,
    request_transition,
)
from workspaces.models import (
    Attempt,
    BuildJob,
    RuntimeInstance,
    Transition,
    Workspace,
    WorkspaceEvent,
)

pytestmark = pytest.mark.django_db
STOP, DELETE = Transition.Kind.STOP, Transition.Kind.DELETE
BODY = {"ownerUserId": OWNER}


def stop(api: Api, workspace_id: uuid.UUID, *, expect: int = 202) -> Answer:
    return api.post(f"/v1/workspaces/{workspace_id}/stop", BODY, expect=expect)


def delete(api: Api, workspace_id: uuid.UUID, *, expect: int = 202) -> Answer:
    path = f"/v1/workspaces/{workspace_id}?ownerUserId={OWNER}"
    return api.request("DELETE", path, expect=expect)


def start(api: Api, workspace_id: uuid.UUID, *, expect: int = 202, **members: Any) -> Answer:
    return api.post(f"/v1/workspaces/{workspace_id}/start", {**BODY, **members}, expect=expect)


def told(workspace_id: uuid.UUID) -> list[str]:
    events = WorkspaceEvent.objects.filter(workspace_id=workspace_id).order_by("pk")
    return list(events.values_list("type", flat=True))


def finished(attempt: Attempt) -> None:
    """Do what a transition_worker writes in the end."""
    workspaces.stop_runtime(attempt, code="stopped", message="Stopped.")
    Transition.objects.open().update(finished_at=Now())


def stopped_attempt() -> Attempt:
    attempt = ready_attempt()
    Transition.objects.create(workspace_id=attempt.workspace_id, kind=STOP, cause="user")
    finished(attempt)
    return attempt


def deleted_workspace() -> uuid.UUID:
    workspace_id = stopped_attempt().workspace_id
    Workspace.objects.filter(pk=workspace_id).update(deleted_at=Now())
    return workspace_id


# ---------------------------------------------------------------- stop


def test_a_stop_is_stored_and_accepted_before_anything_is_done(api: Api) -> None:
    attempt = ready_attempt()
    workspace_id = attempt.workspace_id

    answer = stop(api, workspace_id)

    assert answer.headers["location"] == f"/v1/workspaces/{workspace_id}"
    assert answer.body["status"] == "running"
    assert answer.body["reason"]["code"] == "stopping"
    assert answer.body["reason"]["since"]
    assert answer.body["reason"]["next"]
    transition = Transition.objects.get(workspace_id=workspace_id)
    assert (transition.kind, transition.cause, transition.requested_by) == ("stop", "user", OWNER)
    assert transition.finished_at is None
    assert RuntimeInstance.objects.get(attempt=attempt).status == "stopping"
    assert told(workspace_id)[-2:] == ["workspace.stop-requested", "runtime.stopping"]
    shown = api.get(f"/v1/workspaces/{workspace_id}").body
    assert (shown["status"], shown["reason"]["code"]) == ("running", "stopping")


def test_nobody_enters_a_workspace_that_is_being_stopped(api: Api, settings: Any) -> None:
    settings.WORKSPACE_SSH_GATEWAY_TOKEN = "secret"
    headers = {"x-svc-gateway-token": "secret", "x-svc-principal-id": OWNER}
    workspace_id = ready_attempt().workspace_id
    stop(api, workspace_id)

    target = api.get(f"/v1/workspaces/{workspace_id}/ssh-target", headers=headers, expect=409)
    run = {**BODY, "workspaceId": str(workspace_id), "harnessId": "shell", "prompt": "true"}
    refused = api.post("/v1/runs", {**run, "mode": "one-shot"}, expect=409)

    for answer in (target, refused):
        assert answer.body["code"] == "workspace-not-ready"
        assert answer.body["reason"]["code"] == "stopping"


def test_a_stop_asks_the_runs_of_the_workspace_to_end(api: Api) -> None:
    attempt = ready_attempt()
    run = Run.objects.create(
        workspace_id=attempt.workspace_id,
        attempt=attempt,
        owner_user_id=OWNER,
        harness_id="shell",
        mode=Run.Mode.INTERACTIVE,
        status=Run.Status.RUNNING,
        recorded=True,
    )
    stop(api, attempt.workspace_id)
    run.refresh_from_db()
    assert run.cancel_requested_at is not None
    assert Run.objects.get(pk=attempt.run_id).cancel_requested_at is None


def test_stopping_what_is_being_stopped_changes_nothing(api: Api) -> None:
    workspace_id = ready_attempt().workspace_id
    first = stop(api, workspace_id).body
    before = told(workspace_id)
    assert stop(api, workspace_id).body == first
    assert told(workspace_id) == before
    assert Transition.objects.count() == 1


@pytest.mark.parametrize("relation", ["stopped", "failed"])
def test_stopping_what_has_ended_is_accepted_and_changes_nothing(api: Api, relation: str) -> None:
    if relation == "stopped":
        workspace_id = stopped_attempt().workspace_id
    else:
        job = make_job()
        fail_unclaimed_job(job, code="queue-publish-failed", message="The queue was away.")
        workspace_id = job.attempt.workspace_id
    before = told(workspace_id)
    answer = stop(api, workspace_id)
    assert answer.body["status"] == relation
    assert told(workspace_id) == before
    assert not Transition.objects.open().exists()


@pytest.mark.parametrize("claimed", [False, True])
def test_a_stop_cancels_what_is_being_built(api: Api, claimed: bool) -> None:
    job = make_job()
    make_worker("worker-a")
    if claimed:
        job = claim(job)
    answer = stop(api, job.attempt.workspace_id)
    job.refresh_from_db()
    assert (job.status, job.attempt.__class__.objects.get(pk=job.attempt_id).status) == (
        "cancelled",
        "cancelled",
    )
    assert answer.body["status"] == "cancelled"
    assert answer.body["reason"]["code"] == "stopping"
    assert told(job.attempt.workspace_id)[-2:] == [
        "workspace.stop-requested",
        "attempt.cancelled",
    ]
    assert BuildJob.objects.claim(job.pk, worker_id="worker-b", lease=LEASE) is None


def test_a_stop_of_what_the_owner_does_not_have_is_not_found(api: Api) -> None:
    foreign = ready_attempt().workspace_id
    body = {"ownerUserId": "usr_other"}
    for path in (f"/v1/workspaces/{foreign}/stop", f"/v1/workspaces/{uuid.uuid4()}/stop"):
        answer = api.post(path, body, expect=404)
        assert answer.body["code"] == "workspace-not-found"
    assert not Transition.objects.exists()


def test_a_stop_needs_no_body(api: Api) -> None:
    workspace_id = ready_attempt().workspace_id
    api.post(f"/v1/workspaces/{workspace_id}/stop?ownerUserId={OWNER}")
    assert Transition.objects.open().exists()


def test_a_stop_refuses_members_that_it_does_not_know(api: Api) -> None:
    workspace_id = ready_attempt().workspace_id
    answer = api.post(f"/v1/workspaces/{workspace_id}/stop", {**BODY, "force": True}, expect=400)
    assert answer.codes == {"/force": "unknown-member"}


# ---------------------------------------------------------------- start


def test_a_stopped_workspace_is_resumed_as_an_attempt_of_the_same_sandbox(api: Api) -> None:
    earlier = stopped_attempt()
    answer = start(api, earlier.workspace_id)
    assert answer.body["sandboxId"] == str(earlier.sandbox_id)
    attempt = Attempt.objects.get(pk=answer.body["attemptId"])
    assert attempt.relation == "resume"
    assert BuildJob.objects.get(pk=answer.body["jobId"]).status == "queued"
    assert Run.objects.get(pk=answer.body["runId"]).mode == "boot"
    shown = api.get(f"/v1/workspaces/{earlier.workspace_id}").body
    assert shown["status"] == "queued"


@pytest.mark.parametrize("relation", ["rebuild", "retry", "resume"])
def test_a_start_says_how(api: Api, relation: str) -> None:
    workspace_id = stopped_attempt().workspace_id
    started = start(api, workspace_id, relation=relation).body
    attempts = api.get(f"/v1/workspaces/{workspace_id}/attempts").body["items"]
    assert [one["relation"] for one in attempts] == [relation, "launch"]
    assert attempts[0]["attemptId"] == started["attemptId"]


def test_what_never_was_published_is_tried_again_and_not_resumed(api: Api) -> None:
    job = make_job()
    fail_unclaimed_job(job, code="build-command-failed", message="It did not build.")
    workspace_id = job.attempt.workspace_id
    refused = start(api, workspace_id, relation="resume", expect=409)
    assert refused.body["code"] == "nothing-published"
    started = start(api, workspace_id).body
    assert Attempt.objects.get(pk=started["attemptId"]).relation == "retry"


def test_what_is_live_is_not_started_again(api: Api) -> None:
    for workspace_id in (ready_attempt().workspace_id, make_job().attempt.workspace_id):
        answer = start(api, workspace_id, expect=409)
        assert answer.body["code"] == "workspace-active"


@pytest.mark.parametrize(
    ("kind", "code"), [(STOP, "workspace-stopping"), (DELETE, "workspace-deleting")]
)
def test_what_is_being_stopped_or_deleted_is_not_started(
    api: Api, request_body: dict[str, Any], kind: Transition.Kind, code: str
) -> None:
    workspace_id = ready_attempt().workspace_id
    request_transition(TransitionRequest(workspace_id=workspace_id, kind=kind, owner_user_id=OWNER))
    assert start(api, workspace_id, expect=409).body["code"] == code
    body = {**request_body, "workspaceId": str(workspace_id)}
    assert api.post("/v1/sandboxes", body, expect=409).body["code"] == code
    assert code in codes_told("POST", "/v1/sandboxes")


def test_a_start_of_what_the_owner_does_not_have_is_not_found(api: Api) -> None:
    workspace_id = stopped_attempt().workspace_id
    for known in (workspace_id, uuid.uuid4()):
        answer = api.post(f"/v1/workspaces/{known}/start", {"ownerUserId": "usr_other"}, expect=404)
        assert answer.body["code"] == "workspace-not-found"


@pytest.mark.usefixtures("unreachable_broker")
def test_a_start_whose_queue_cannot_be_reached_is_recorded_as_failed(api: Api) -> None:
    workspace_id = stopped_attempt().workspace_id
    answer = start(api, workspace_id, expect=502)
    assert answer.body["code"] == "queue-publish-failed"
    assert api.get(f"/v1/workspaces/{workspace_id}").body["status"] == "failed"


def test_a_start_refuses_a_relation_that_there_is_not(api: Api) -> None:
    workspace_id = stopped_attempt().workspace_id
    assert start(api, workspace_id, relation="launch", expect=400).codes == {
        "/relation": "invalid-choice"
    }


# ---------------------------------------------------------------- delete


def test_a_delete_is_accepted_in_every_state_and_again(api: Api) -> None:
    failed = make_job()
    fail_unclaimed_job(failed, code="x", message="It failed.")
    for workspace_id in (
        make_job().attempt.workspace_id,
        claim(make_job()).attempt.workspace_id,
        ready_attempt().workspace_id,
        stopped_attempt().workspace_id,
        failed.attempt.workspace_id,
    ):
        for _ in range(2):
            answer = delete(api, workspace_id)
            assert answer.body["reason"]["code"] == "deleting"
        assert Transition.objects.get(workspace_id=workspace_id, finished_at=None).kind == DELETE
        assert told(workspace_id).count("workspace.delete-requested") == 1


def test_a_delete_wins_over_a_stop_and_a_stop_not_over_a_delete(api: Api) -> None:
    workspace_id = ready_attempt().workspace_id
    stop(api, workspace_id)
    delete(api, workspace_id)
    assert Transition.objects.get(workspace_id=workspace_id).kind == DELETE
    answer = stop(api, workspace_id)
    assert answer.body["reason"]["code"] == "deleting"
    assert Transition.objects.get(workspace_id=workspace_id).kind == DELETE


def test_a_delete_of_a_failed_workspace_leaves_its_failure_readable_until_it_is_gone(
    api: Api,
) -> None:
    job = make_job()
    fail_unclaimed_job(job, code="build-command-failed", message="It did not build.")
    shown = delete(api, job.attempt.workspace_id).body
    assert shown["status"] == "failed"
    assert shown["error"]["code"] == "build-command-failed"


def test_what_is_deleted_is_left_out_of_lists_and_says_so_by_its_id(api: Api) -> None:
    workspace_id = deleted_workspace()
    kept = ready_attempt().workspace_id
    shown = api.get(f"/v1/workspaces/{workspace_id}").body
    assert shown["status"] == "deleted"
    assert shown["reason"]["code"] == "deleted"
    assert shown["deletedAt"]

    def listed(query: str = "") -> list[str]:
        items = api.get(f"/v1/workspaces?ownerUserId={OWNER}{query}").body["items"]
        return [item["workspaceId"] for item in items]

    assert listed() == [str(kept)]
    assert listed("&status=stopped") == []
    assert listed("&status=deleted") == [str(workspace_id)]


def test_what_is_deleted_stays_deleted(api: Api) -> None:
    workspace_id = deleted_workspace()
    assert delete(api, workspace_id).body["status"] == "deleted"
    assert stop(api, workspace_id, expect=409).body["code"] == "workspace-deleted"
    assert start(api, workspace_id, expect=409).body["code"] == "workspace-deleted"
    assert not Transition.objects.open().exists()


def test_what_is_deleted_cannot_be_started_as_a_sandbox(
    api: Api, request_body: dict[str, Any]
) -> None:
    body = {**request_body, "workspaceId": str(deleted_workspace())}
    assert api.post("/v1/sandboxes", body, expect=409).body["code"] == "workspace-deleted"
    assert "workspace-deleted" in codes_told("POST", "/v1/sandboxes")


def test_the_history_and_the_runs_of_what_is_deleted_stay_readable(api: Api) -> None:
    workspace_id = deleted_workspace()
    assert api.get(f"/v1/workspaces/{workspace_id}/events").body["items"]
    attempts = api.get(f"/v1/workspaces/{workspace_id}/attempts").body["items"]
    assert api.get(f"/v1/runs/{attempts[0]['runId']}").body["mode"] == "boot"


def test_a_delete_of_what_the_owner_does_not_have_is_not_found(api: Api) -> None:
    workspace_id = ready_attempt().workspace_id
    for known in (workspace_id, uuid.uuid4()):
        path = f"/v1/workspaces/{known}?ownerUserId=usr_other"
        answer = api.request("DELETE", path, expect=404)
        assert answer.body["code"] == "workspace-not-found"
    assert not Transition.objects.exists()


# ---------------------------------------------------------------- the time to live


@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/workspaces"])
def test_a_time_to_live_is_counted_from_the_start(
    api: Api, request_body: dict[str, Any], path: str
) -> None:
    answer = api.post(path, {**request_body, "ttlSeconds": 3600})
    workspace = Workspace.objects.get(pk=answer.body["workspaceId"])
    assert workspace.ttl_seconds == 3600
    assert workspace.expires_at is not None
    assert (workspace.expires_at - workspace.created_at).total_seconds() == pytest.approx(3600, 1)
    assert api.get(f"/v1/workspaces/{workspace.pk}").body["expiresAt"]


def test_without_a_time_to_live_a_workspace_never_expires(
    api: Api, request_body: dict[str, Any]
) -> None:
    answer = api.post("/v1/workspaces", request_body)
    shown = api.get(f"/v1/workspaces/{answer.body['workspaceId']}").body
    assert "expiresAt" not in shown


CENTURY = 100 * 366 * 24 * 3600


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (0, "min-value"),
        (-1, "min-value"),
        (9, "min-value"),
        (CENTURY, "max-value"),
        (2**63, "max-value"),
        ("soon", "wrong-type"),
        (1.5, "wrong-type"),
        (True, "wrong-type"),
    ],
)
def test_a_time_to_live_that_makes_no_sense_is_refused(
    api: Api, request_body: dict[str, Any], given: Any, code: str
) -> None:
    answer = api.post("/v1/workspaces", {**request_body, "ttlSeconds": given}, expect=400)
    assert answer.codes == {"/ttlSeconds": code}


def test_what_has_expired_is_stopped_by_a_transition() -> None:
    attempt = ready_attempt()
    Workspace.objects.filter(pk=attempt.workspace_id).update(ttl_seconds=10, expires_at=Now())
    assert expire_workspaces() == 1
    assert expire_workspaces() == 0
    transition = Transition.objects.get()
    assert (transition.kind, transition.cause) == ("stop", "expired")
    assert RuntimeInstance.objects.get(attempt=attempt).status == "stopping"
    event = WorkspaceEvent.objects.get(type="workspace.stop-requested")
    assert event.data["cause"] == "expired"


def test_what_has_ended_before_its_time_does_not_expire() -> None:
    attempt = stopped_attempt()
    Workspace.objects.filter(pk=attempt.workspace_id).update(ttl_seconds=10, expires_at=Now())
    assert expire_workspaces() == 0
    assert Workspace.objects.get(pk=attempt.workspace_id).expires_at is None
    assert not Transition.objects.open().exists()


def test_a_start_begins_the_time_to_live_again(api: Api) -> None:
    attempt = stopped_attempt()
    Workspace.objects.filter(pk=attempt.workspace_id).update(ttl_seconds=600, expires_at=None)
    start(api, attempt.workspace_id)
    assert Workspace.objects.get(pk=attempt.workspace_id).expires_at is not None


# ---------------------------------------------------------------- a time to live that changes


def patch_ttl(api: Api, workspace_id: uuid.UUID, seconds: Any, *, expect: int = 200) -> Answer:
    body = {"ownerUserId": OWNER, "ttlSeconds": seconds}
    return api.patch(f"/v1/workspaces/{workspace_id}", body, expect=expect)


@pytest.mark.parametrize(("before", "after"), [(None, 3600), (60, 3600), (36000, 60)])
def test_a_new_time_to_live_counts_from_now_and_after_later_starts(
    api: Api, before: int | None, after: int
) -> None:
    workspace_id = ready_attempt().workspace_id
    left = None if before is None else Now() + timedelta(seconds=before)
    Workspace.objects.filter(pk=workspace_id).update(ttl_seconds=before, expires_at=left)
    answer = patch_ttl(api, workspace_id, after)
    workspace = Workspace.objects.get(pk=workspace_id)
    assert workspace.ttl_seconds == after
    assert workspace.expires_at is not None
    seconds = (workspace.expires_at - workspace.updated_at).total_seconds()
    assert seconds == pytest.approx(after, abs=0.01)
    assert answer.body["expiresAt"] == api.get(f"/v1/workspaces/{workspace_id}").body["expiresAt"]
    event = WorkspaceEvent.objects.get(workspace_id=workspace_id, type="workspace.ttl-changed")
    assert event.data == {"ttlSeconds": after, "before": before}


def test_a_workspace_whose_time_was_over_lives_on_if_it_gets_more_before_it_is_stopped(
    api: Api,
) -> None:
    workspace_id = ready_attempt().workspace_id
    Workspace.objects.filter(pk=workspace_id).update(ttl_seconds=10, expires_at=Now())
    patch_ttl(api, workspace_id, 600)
    assert expire_workspaces() == 0
    assert not Transition.objects.exists()


def test_what_is_still_being_built_can_get_another_time_to_live(api: Api) -> None:
    workspace_id = make_job().attempt.workspace_id
    assert patch_ttl(api, workspace_id, 600).body["expiresAt"]


def test_what_has_no_life_left_gets_no_other_time_to_live(api: Api) -> None:
    ended, deleted = stopped_attempt().workspace_id, deleted_workspace()
    stopping, deleting = ready_attempt().workspace_id, ready_attempt().workspace_id
    stop(api, stopping)
    delete(api, deleting)
    codes = {
        stopping: "workspace-stopping",
        deleting: "workspace-deleting",
        ended: "workspace-ended",
        deleted: "workspace-deleted",
    }
    for workspace_id, code in codes.items():
        before = Workspace.objects.values("ttl_seconds", "expires_at").get(pk=workspace_id)
        assert patch_ttl(api, workspace_id, 600, expect=409).body["code"] == code
        after = Workspace.objects.values("ttl_seconds", "expires_at").get(pk=workspace_id)
        assert after == before
    assert not WorkspaceEvent.objects.filter(type="workspace.ttl-changed").exists()


@pytest.mark.parametrize(
    ("given", "code"), [(9, "min-value"), (CENTURY, "max-value"), ("soon", "wrong-type")]
)
def test_another_time_to_live_is_bounded_like_the_first(api: Api, given: Any, code: str) -> None:
    workspace_id = ready_attempt().workspace_id
    assert patch_ttl(api, workspace_id, given, expect=400).codes == {"/ttlSeconds": code}
    assert patch_ttl(api, workspace_id, None, expect=400).codes == {"/ttlSeconds": "required"}


def test_nobody_changes_the_time_to_live_of_a_foreign_workspace(api: Api) -> None:
    workspace_id = ready_attempt().workspace_id
    for known in (workspace_id, uuid.uuid4()):
        body = {"ownerUserId": "usr_other", "ttlSeconds": 600}
        answer = api.patch(f"/v1/workspaces/{known}", body, expect=404)
        assert answer.body["code"] == "workspace-not-found"
    assert Workspace.objects.get(pk=workspace_id).expires_at is None
