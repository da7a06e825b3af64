"""Stopping, deleting and starting workspaces that exist.

A request only stores what is wanted, with the event that tells of it; whoever waits reads the
workspace. What is stored cannot be taken back: a stop may become a delete, and a delete stays one.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from django.db import transaction
from django.db.models.functions import Coalesce, Now

from accounts.resolution import resolve_credentials
from builds.credential_choice import same_credentials
from builds.intents import CHANNEL as INTENTS
from builds.models import BuildJob, Intent
from builds.owner_limits import require_room_to_start
from builds.resuming import published_before
from builds.services import (
    StartedSandbox,
    answer_of,
    cancel_job,
    create_job,
    publish_or_fail,
)
from builds.startable import latest_sandbox, startable_workspace
from controlplane.announcements import announce
from controlplane.errors import Conflict, NotFound
from runs.models import Run
from runs.services import create_boot_run
from workspaces import services as workspaces
from workspaces.models import Attempt, Sandbox, Workspace, WorkspaceEvent
from workspaces.status import TERMINAL

log = structlog.get_logger(__name__)

REASONS = {
    (Intent.Kind.STOP, Intent.Cause.USER): "The owner asked to stop the workspace.",
    (Intent.Kind.STOP, Intent.Cause.OPERATOR): "An operator asked to stop the workspace.",
    (Intent.Kind.STOP, Intent.Cause.EXPIRED): "The workspace's time to live is over.",
    (Intent.Kind.DELETE, Intent.Cause.USER): "The owner asked to delete the workspace.",
    (Intent.Kind.DELETE, Intent.Cause.OPERATOR): "An operator asked to delete the workspace.",
}
EVENTS = {
    Intent.Kind.STOP: WorkspaceEvent.Type.STOP_REQUESTED,
    Intent.Kind.DELETE: WorkspaceEvent.Type.DELETE_REQUESTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Who wants what of which workspace, and why; ``owner_user_id`` None: whoever's it is."""

    workspace_id: uuid.UUID
    kind: Intent.Kind
    owner_user_id: str | None
    cause: Intent.Cause = Intent.Cause.USER
    requested_by: str = ""


def ask(wish: Wish) -> bool:
    """Store that a workspace is to be stopped or deleted; False when there is nothing to do.

    A stop ends what is built, launched or running; of a workspace that has ended, is being stopped
    or is being deleted nothing is left to stop. A delete is accepted in every state.

    Raises ``NotFound`` (``workspace-not-found``), also for one that is said to have expired and has
    time left, and ``Conflict`` (``workspace-deleted``) when one is to be stopped that was deleted.
    """
    with transaction.atomic():
        workspace = _locked(wish)
        if workspace.deleted_at is not None:
            if wish.kind == Intent.Kind.STOP:
                raise Conflict("The workspace was deleted.", code="workspace-deleted")
            return False
        sandbox = latest_sandbox(workspace)
        ended = sandbox is None or sandbox.status in TERMINAL
        intent = Intent.objects.open().select_for_update().filter(workspace=workspace).first()
        if wish.kind == Intent.Kind.STOP and (ended or intent is not None):
            return False
        if intent is not None and intent.kind == wish.kind:
            return False
        _store(wish, workspace, intent)
        if sandbox is not None and not ended:
            _begin_end(sandbox, REASONS[wish.kind, wish.cause])
    log.info("intent_stored", workspace_id=str(workspace.pk), kind=wish.kind, cause=wish.cause)
    return True


def _locked(wish: Wish) -> Workspace:
    rows = Workspace.objects.select_for_update(no_key=True).owned_by(wish.owner_user_id)
    if wish.cause == Intent.Cause.EXPIRED:
        # Whoever saw that its time was over may have slept since, and others have stopped it and
        # started it again.
        rows = rows.filter(expires_at__lte=Now())
    workspace = rows.filter(pk=wish.workspace_id).first()
    if workspace is None:
        raise NotFound("There is no such workspace.", code="workspace-not-found")
    assert isinstance(workspace, Workspace)
    return workspace


def _store(wish: Wish, workspace: Workspace, earlier: Intent | None) -> None:
    who = wish.requested_by or workspace.owner_user_id
    if earlier is None:
        Intent.objects.create(
            workspace=workspace, kind=wish.kind, cause=wish.cause, requested_by=who
        )
    else:
        Intent.objects.filter(pk=earlier.pk).update(
            kind=wish.kind, cause=wish.cause, requested_by=who, retry_at=None
        )
    Workspace.objects.filter(pk=workspace.pk).update(expires_at=None, updated_at=Now())
    announce(INTENTS)
    workspaces.record_workspace_event(
        workspace,
        EVENTS[wish.kind],
        REASONS[wish.kind, wish.cause],
        {"cause": wish.cause, "requestedBy": who},
    )


def _begin_end(sandbox: Sandbox, reason: str) -> None:
    """Cancel the build, or have nothing new begin in the workspace and what runs in it end."""
    attempt = sandbox.latest_attempt
    if attempt is None:
        return
    job = BuildJob.objects.filter(attempt=attempt).order_by("-pk").first()
    if job is not None and cancel_job(job, reason=reason):
        return
    workspaces.begin_stop(attempt, message="What runs in the workspace is told to end.")
    Run.objects.open().filter(attempt=attempt, recorded=True).exclude(mode=Run.Mode.BOOT).update(
        cancel_requested_at=Coalesce("cancel_requested_at", Now()), updated_at=Now()
    )


def cancel_build(job: BuildJob, *, requested_by: str) -> bool:
    """Cancel a build for an operator; False when its workspace was launched, or it has ended.

    What a worker has begun is cleared like that of a stop: until it is, the workspace does not
    start again, and so its next attempt never meets what is left of this one.
    """
    wish = Wish(
        workspace_id=job.attempt.workspace_id,
        kind=Intent.Kind.STOP,
        owner_user_id=None,
        cause=Intent.Cause.OPERATOR,
        requested_by=requested_by,
    )
    with transaction.atomic():
        workspace = _locked(wish)
        if not cancel_job(job, reason=f"Cancelled by {requested_by}."):
            return False
        # Counted with every claim: read after the write, which no claim gets past.
        begun = BuildJob.objects.filter(pk=job.pk, attempt_count__gt=0).exists()
        if begun and not Intent.objects.open().filter(workspace=workspace).exists():
            _store(wish, workspace, None)
    return True


def expire_workspaces(*, limit: int = 100) -> int:
    """Have the workspaces stopped whose time to live is over; return how many."""
    expired = Workspace.objects.filter(expires_at__lte=Now()).order_by("expires_at")
    asked = 0
    for workspace_id in list(expired.values_list("pk", flat=True)[:limit]):
        wish = Wish(
            workspace_id=workspace_id,
            kind=Intent.Kind.STOP,
            owner_user_id=None,
            cause=Intent.Cause.EXPIRED,
            requested_by="time to live",
        )
        with contextlib.suppress(Conflict, NotFound):
            asked += ask(wish)
        # Of one that had ended by itself nothing was to be stopped.
        expired.filter(pk=workspace_id).update(expires_at=None)
    return asked


@dataclass(frozen=True, slots=True, kw_only=True)
class StartIntent:
    """What a client asks for when it starts a workspace again.

    ``relation`` None: resume what was published, or else try again. ``credentials`` None: those
    that the workspace had.
    """

    workspace_id: uuid.UUID
    owner_user_id: str | None
    relation: Sandbox.Relation | None = None
    credentials: Mapping[str, Any] | None = None
    requested_by: str = ""
    trigger_type: Attempt.TriggerType = Attempt.TriggerType.API


def start_workspace(intent: StartIntent) -> StartedSandbox:
    """Start another attempt of a workspace that has ended, with its latest blueprint.

    Raises what ``builds.startable`` and ``accounts.resolution`` raise, ``OwnerLimitReached``,
    ``Conflict`` (``nothing-published``) when there is no image to resume, and ``BadGateway``
    (``queue-publish-failed``) after the failure was written.
    """
    found = workspaces.get_workspace(intent.workspace_id, owner_user_id=intent.owner_user_id)
    with transaction.atomic():
        require_room_to_start(found.owner_user_id, new_workspace=False)
        workspace = startable_workspace(intent.workspace_id, intent.owner_user_id)
        sandbox = latest_sandbox(workspace)
        if sandbox is None:
            raise Conflict("Nothing was ever started in it.", code="nothing-published")
        credentials = (
            same_credentials(sandbox.latest_attempt, workspace.owner_user_id)
            if intent.credentials is None
            else resolve_credentials(intent.credentials, owner_user_id=workspace.owner_user_id)
        )
        attempt = workspaces.create_attempt(
            sandbox=sandbox,
            relation=_relation(intent, sandbox),
            trigger_type=intent.trigger_type,
            requested_by=intent.requested_by or workspace.owner_user_id,
            credentials=credentials,
        )
        create_boot_run(attempt)
        job = create_job(attempt)
    publish_or_fail(job)
    return StartedSandbox(answer_of(job), replayed=False)


def _relation(intent: StartIntent, sandbox: Sandbox) -> Sandbox.Relation:
    published = published_before(sandbox) is not None
    if intent.relation is None:
        return Sandbox.Relation.RESUME if published else Sandbox.Relation.RETRY
    if intent.relation == Sandbox.Relation.RESUME and not published:
        raise Conflict(
            "No image of the workspace was published yet; retry instead.", code="nothing-published"
        )
    return intent.relation
