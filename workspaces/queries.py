"""The rows that the endpoints of workspaces and sandboxes show. A foreign row is an absent one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet

from controlplane.database.compiled_reads import compiled_rows
from controlplane.database.ids import IdOrder
from controlplane.errors import NotFound
from workspaces.models import Attempt, Sandbox, Workspace, WorkspaceEvent
from workspaces.services import get_workspace
from workspaces.status import DELETED


def list_workspaces(
    *, owner_user_id: str, status: str | None
) -> tuple[QuerySet[Workspace], IdOrder]:
    """Return an owner's workspaces with their latest attempts; deleted ones only when asked for.

    With the order in which they can be paged through.
    """
    rows = (
        Workspace.objects.select_related("latest_sandbox__latest_attempt")
        # A blueprint may be large, and a list shows none.
        .defer("latest_sandbox__spec", "latest_sandbox__latest_attempt__spec")
    )
    if status == DELETED:
        return rows.filter(owner_user_id=owner_user_id, deleted_at__isnull=False), IdOrder("id")
    rows = rows.filter(deleted_at__isnull=True)
    if status is None:
        return rows.filter(owner_user_id=owner_user_id), IdOrder("id")
    # Asked of the sandbox, which has its workspace's owner: the list follows the index over these.
    of_status = rows.filter(
        latest_sandbox__owner_user_id=owner_user_id, latest_sandbox__status=status
    )
    return of_status, IdOrder("latest_sandbox__workspace_id")


def get_workspace_with_latest(workspace_id: uuid.UUID, *, owner_user_id: str | None) -> Workspace:
    """Return a workspace with its latest sandbox and attempt; raise ``NotFound``."""
    found = _one(_workspaces_with_latest, workspace_id, owner_user_id)
    if found is None:
        raise NotFound("There is no such workspace.", code="workspace-not-found")
    assert isinstance(found, Workspace)
    return found


def get_sandbox(sandbox_id: uuid.UUID, *, owner_user_id: str | None) -> Sandbox:
    """Return a sandbox with its workspace and latest attempt; raise ``NotFound``."""
    found = _one(_sandboxes, sandbox_id, owner_user_id)
    if found is None:
        raise NotFound("There is no such sandbox.", code="sandbox-not-found")
    assert isinstance(found, Sandbox)
    return found


def list_attempts(workspace_id: uuid.UUID, *, owner_user_id: str | None) -> QuerySet[Attempt]:
    """Return the attempts of a workspace; raise ``NotFound``."""
    workspace = get_workspace(workspace_id, owner_user_id=owner_user_id)
    return Attempt.objects.filter(workspace=workspace)


def latest_attempt(workspace_id: uuid.UUID, *, owner_user_id: str | None) -> Attempt | None:
    """Return the latest attempt of a workspace, if anything was started; raise ``NotFound``."""
    rows = list_attempts(workspace_id, owner_user_id=owner_user_id)
    return rows.order_by("-pk").first()


def list_events(workspace_id: uuid.UUID, *, owner_user_id: str | None) -> QuerySet[WorkspaceEvent]:
    """Return the history of a workspace; raise ``NotFound``."""
    workspace = get_workspace(workspace_id, owner_user_id=owner_user_id)
    return WorkspaceEvent.objects.filter(workspace=workspace)


def _one(rows: Callable[..., QuerySet[Any]], key: uuid.UUID, owner_user_id: str | None) -> Any:
    """Return the row with that key, unless its owner is another one than the caller names."""
    owner = () if owner_user_id is None else (owner_user_id,)
    return next(iter(compiled_rows(rows, key, *owner)), None)


def _workspaces_with_latest(key: uuid.UUID, owner: str | None = None) -> QuerySet[Workspace]:
    rows = Workspace.objects.owned_by(owner)
    return rows.select_related("latest_sandbox__latest_attempt").filter(pk=key)


def _sandboxes(key: uuid.UUID, owner: str | None = None) -> QuerySet[Sandbox]:
    rows = Sandbox.objects.owned_by(owner)
    return rows.select_related("workspace", "latest_attempt").filter(pk=key)
