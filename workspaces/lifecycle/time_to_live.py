"""How long a workspace may run before it is stopped by itself."""

from __future__ import annotations

import uuid
from datetime import timedelta

from django.db import transaction
from django.db.models.functions import Now

from controlplane.errors import Conflict, NotFound
from workspaces.lifecycle.starting.startable import latest_sandbox, refuse_unless_at_rest
from workspaces.models import Workspace, WorkspaceEvent
from workspaces.services import record_workspace_event
from workspaces.status import TERMINAL


def change_time_to_live(
    workspace_id: uuid.UUID, *, owner_user_id: str | None, ttl_seconds: int
) -> None:
    """Have a live workspace stopped ``ttl_seconds`` from now, and so long after each later start.

    Raises ``NotFound`` (``workspace-not-found``), and ``Conflict``: ``workspace-ended`` when
    nothing is left to stop, ``workspace-stopping``, ``workspace-deleting``, ``workspace-deleted``.
    """
    with transaction.atomic():
        rows = Workspace.objects.select_for_update(no_key=True).owned_by(owner_user_id)
        workspace = rows.filter(pk=workspace_id).first()
        if workspace is None:
            raise NotFound("There is no such workspace.", code="workspace-not-found")
        refuse_unless_at_rest(workspace)
        sandbox = latest_sandbox(workspace)
        if sandbox is None or sandbox.status in TERMINAL:
            raise Conflict(
                "The workspace has ended; its time to live begins when it is started again.",
                code="workspace-ended",
            )
        Workspace.objects.filter(pk=workspace.pk).update(
            ttl_seconds=ttl_seconds,
            expires_at=Now() + timedelta(seconds=ttl_seconds),
            updated_at=Now(),
        )
        record_workspace_event(
            workspace,
            WorkspaceEvent.Type.TTL_CHANGED,
            f"The workspace will be stopped in {ttl_seconds} s.",
            {"ttlSeconds": ttl_seconds, "before": workspace.ttl_seconds},
        )
