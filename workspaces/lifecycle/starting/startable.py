"""Whether another attempt of a workspace may begin."""

from __future__ import annotations

import uuid

from controlplane.errors import Conflict, Fault, NotFound
from workspaces.models import Sandbox, Transition, Workspace
from workspaces.status import TERMINAL


def startable_workspace(workspace_id: uuid.UUID, owner_user_id: str | None) -> Workspace:
    """Return the locked workspace; raise ``Conflict`` unless it can be started again.

    ``workspace-deleted``, ``workspace-stopping`` and ``workspace-deleting`` while a transition
    is open, ``workspace-active`` while an earlier sandbox of it is live.
    """
    workspace = workspace_at_rest(workspace_id, owner_user_id)
    latest = latest_sandbox(workspace)
    if latest is not None and latest.status not in TERMINAL:
        raise Conflict(
            f"The workspace is {latest.status}; only one that has ended can be started again.",
            code="workspace-active",
        )
    return workspace


def workspace_at_rest(workspace_id: uuid.UUID, owner_user_id: str | None) -> Workspace:
    """Return the locked workspace, live or not; raise what :func:`refuse_unless_at_rest` raises."""
    workspace = (
        Workspace.objects.select_for_update(no_key=True)
        .owned_by(owner_user_id)
        .filter(pk=workspace_id)
        .first()
    )
    if workspace is None:
        raise NotFound(
            "There is no such workspace.",
            code="workspace-not-found",
            errors=[Fault("not-found", "There is no such workspace.", pointer="/workspaceId")],
        )
    assert isinstance(workspace, Workspace)
    refuse_unless_at_rest(workspace)
    return workspace


def latest_sandbox(workspace: Workspace) -> Sandbox | None:
    """Return the latest sandbox of a workspace that is locked, as it is now.

    In a statement of its own: a join would show it as it was before the lock was had.
    """
    latest = workspace.latest_sandbox_id
    return None if latest is None else Sandbox.objects.filter(pk=latest).first()


def refuse_unless_at_rest(workspace: Workspace) -> None:
    """Raise ``Conflict`` for a workspace that was deleted, or is being stopped or deleted."""
    if workspace.deleted_at is not None:
        raise Conflict("The workspace was deleted.", code="workspace-deleted")
    transition = Transition.objects.open().filter(workspace=workspace).first()
    if transition is not None:
        stopping = transition.kind == Transition.Kind.STOP
        raise Conflict(
            "The workspace is being stopped; it can be started again once it has stopped."
            if stopping
            else "The workspace is being deleted.",
            code="workspace-stopping" if stopping else "workspace-deleting",
        )
