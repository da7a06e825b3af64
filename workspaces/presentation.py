"""What the answers show of rows: the members of workspaces, sandboxes, attempts and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workspaces.lifecycle.attempt_states import AttemptState, attempt_states
from workspaces.lifecycle.reasons import Reason
from workspaces.models import Attempt, RuntimeInstance, Sandbox, Workspace, WorkspaceEvent
from workspaces.status import DELETED, SurfacedStatus


def present_workspaces(rows: Sequence[Workspace]) -> list[Any]:
    """Return what a list shows of these workspaces, in a constant number of queries."""
    attempts = {
        row.pk: row.latest_sandbox.latest_attempt
        for row in rows
        if row.latest_sandbox and row.latest_sandbox.latest_attempt
    }
    states = attempt_states(attempts.values())
    return [
        workspace_members(row, states.get(attempts[row.pk].pk) if row.pk in attempts else None)
        for row in rows
    ]


def present_workspace(workspace: Workspace) -> dict[str, Any]:
    """Return what a read of one workspace shows."""
    (members,) = present_workspaces([workspace])
    sandbox = workspace.latest_sandbox
    return {**members, "spec": sandbox.spec if sandbox else None}


def present_renamed(workspace: Workspace) -> dict[str, Any]:
    """Return what the answer to a new name shows."""
    return {
        "workspace_id": workspace.pk,
        "name": workspace.name,
        "updated_at": workspace.updated_at,
    }


def present_ssh_target(attempt: Attempt, runtime: RuntimeInstance) -> dict[str, Any]:
    """Return where the SSH gateway finds a workspace."""
    return {
        "workspace_id": attempt.workspace_id,
        "attempt_id": attempt.pk,
        "runtime": runtime,
        "working_directory": attempt.spec.get("runtime", {}).get("workingDirectory"),
    }


def present_sandbox(sandbox: Sandbox) -> dict[str, Any]:
    """Return what a read of one sandbox shows."""
    attempt = sandbox.latest_attempt
    return sandbox_members(sandbox, attempt_states([attempt])[attempt.pk] if attempt else None)


def present_attempts(rows: Sequence[Attempt]) -> list[Any]:
    """Return what a list shows of these attempts."""
    states = attempt_states(rows)
    return [attempt_members(states[row.pk]) for row in rows]


def present_events(rows: Sequence[WorkspaceEvent]) -> list[Any]:
    """Return what a list shows of these events."""
    return [
        {
            "event_id": event.pk,
            "workspace_id": event.workspace_id,
            "attempt_id": event.attempt_id,
            "type": event.type,
            "occurred_at": event.occurred_at,
            "message": event.message,
            "data": event.data,
        }
        for event in rows
    ]


def sandbox_members(sandbox: Sandbox, state: AttemptState | None) -> dict[str, Any]:
    """Return what a read of ``sandbox`` shows."""
    shared = state.to_members() if state else {}
    return {
        **_without_attempt(sandbox),
        **shared,
        "sandbox_id": sandbox.pk,
        "workspace_id": sandbox.workspace_id,
        "attempt_id": state.attempt.pk if state else None,
        "run_id": state.attempt.run_id if state else None,
        "job_id": state.job.pk if state and state.job else None,
        "name": sandbox.workspace.name,
        "owner_user_id": sandbox.owner_user_id,
        "relation": sandbox.relation,
        "registry_id": sandbox.registry_id,
        "repository": sandbox.repository,
        "tag": sandbox.tag,
        "spec": sandbox.spec,
        "created_at": sandbox.created_at,
        "updated_at": max(sandbox.updated_at, shared.get("updated_at", sandbox.updated_at)),
    }


def _without_attempt(row: Sandbox | Workspace) -> dict[str, Any]:
    """Return the shared members of something that has no attempt (never through the API)."""
    status = row.status if isinstance(row, Sandbox) else SurfacedStatus.QUEUED.value
    empty = ("reason", "runtime", "published_image", "error", "started_at", "finished_at")
    return {"status": status, **dict.fromkeys(empty)}


def workspace_members(workspace: Workspace, state: AttemptState | None) -> dict[str, Any]:
    """Return what a list shows of ``workspace``: its latest sandbox's state."""
    sandbox = workspace.latest_sandbox
    shared = state.to_members() if state else {}
    return {
        **_without_attempt(workspace),
        **shared,
        **_deleted_members(workspace),
        "expires_at": workspace.expires_at,
        "deleted_at": workspace.deleted_at,
        "workspace_id": workspace.pk,
        "sandbox_id": sandbox.pk if sandbox else None,
        "name": workspace.name,
        "owner_user_id": workspace.owner_user_id,
        "registry_id": sandbox.registry_id if sandbox else None,
        "repository": sandbox.repository if sandbox else None,
        "tag": sandbox.tag if sandbox else None,
        "engine": _engine_members(state),
        "created_at": workspace.created_at,
        "updated_at": max(workspace.updated_at, shared.get("updated_at", workspace.updated_at)),
    }


def _engine_members(state: AttemptState | None) -> dict[str, Any] | None:
    if state is None or not state.engine_name:
        return None
    return {"name": state.engine_name, "pinned": state.is_pinned}


def _deleted_members(workspace: Workspace) -> dict[str, Any]:
    if workspace.deleted_at is None:
        return {}
    reason = Reason(
        DELETED,
        "The workspace was deleted; its containers and volumes are gone.",
        workspace.deleted_at,
        "Nothing more happens; the records of its runs are kept for the retention time.",
    )
    return {"status": DELETED, "reason": reason, "runtime": None, "error": None}


def attempt_members(state: AttemptState) -> dict[str, Any]:
    """Return what a read of an attempt shows."""
    attempt = state.attempt
    return {
        **state.to_members(),
        "attempt_id": attempt.pk,
        "sandbox_id": attempt.sandbox_id,
        "run_id": attempt.run_id,
        "job_id": state.job.pk if state.job else None,
        "relation": attempt.relation,
        "trigger_type": attempt.trigger_type,
        "spec": attempt.spec,
        "queued_at": attempt.queued_at,
        "linked_at": attempt.created_at,
        "duration_ms": attempt.duration_ms,
    }
