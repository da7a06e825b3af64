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
from django.db.models.functions import Now

from accounts.resolution import resolve_credentials
from controlplane.errors import Conflict, NotFound
from controlplane.work.notifications import announce
from workspaces import services as workspaces
from workspaces.credentials.choice import same_credentials
from workspaces.egress.bound.bindings import placeholders_for
from workspaces.lifecycle.queueing import cancel_job, create_job, publish_or_fail
from workspaces.lifecycle.records import records
from workspaces.lifecycle.starting.start_limits import require_room_to_start
from workspaces.lifecycle.starting.start_request import StartedSandbox, answer_of
from workspaces.lifecycle.starting.startable import latest_sandbox, startable_workspace
from workspaces.models import Attempt, BuildJob, Sandbox, Transition, Workspace, WorkspaceEvent
from workspaces.models.transition import CHANNEL as TRANSITIONS
from workspaces.status import TERMINAL

log = structlog.get_logger(__name__)

REASONS = {
    (Transition.Kind.STOP, Transition.Cause.USER): "The owner asked to stop the workspace.",
    (Transition.Kind.STOP, Transition.Cause.OPERATOR): "An operator asked to stop the workspace.",
    (Transition.Kind.STOP, Transition.Cause.EXPIRED): "The workspace's time to live is over.",
    (Transition.Kind.STOP, Transition.Cause.DISK): "The workspace uses more disk than allowed.",
    (Transition.Kind.DELETE, Transition.Cause.USER): "The owner asked to delete the workspace.",
    (
        Transition.Kind.DELETE,
        Transition.Cause.OPERATOR,
    ): "An operator asked to delete the workspace.",
}
EVENTS = {
    Transition.Kind.STOP: WorkspaceEvent.Type.STOP_REQUESTED,
    Transition.Kind.DELETE: WorkspaceEvent.Type.DELETE_REQUESTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRequest:
    """Who wants what of which workspace, and why; ``owner_user_id`` None: whoever's it is.

    ``detail`` is what the owner is told beyond the cause. With ``attempt_id`` nothing is to be done
    unless that is still the workspace's latest attempt.
    """

    workspace_id: uuid.UUID
    kind: Transition.Kind
    owner_user_id: str | None
    cause: Transition.Cause = Transition.Cause.USER
    requested_by: str = ""
    detail: str = ""
    attempt_id: uuid.UUID | None = None

    @property
    def reason(self) -> str:
        """Why, as sentences for the owner."""
        return _sentences(self.kind, self.cause, self.detail)


def reason_of(transition: Transition) -> str:
    """Return why a transition was asked for, as sentences for the owner."""
    kind, cause = Transition.Kind(transition.kind), Transition.Cause(transition.cause)
    return _sentences(kind, cause, transition.detail)


def _sentences(kind: Transition.Kind, cause: Transition.Cause, detail: str) -> str:
    return f"{REASONS[kind, cause]} {detail}".rstrip()


def request_transition(request: TransitionRequest) -> bool:
    """Store that a workspace is to be stopped or deleted; False when there is nothing to do.

    A stop ends what is built, launched or running; of a workspace that has ended, is being stopped
    or is being deleted nothing is left to stop. A delete is accepted in every state.

    Raises ``NotFound`` (``workspace-not-found``), also for one that is said to have expired and has
    time left, and ``Conflict`` (``workspace-deleted``) when one is to be stopped that was deleted.
    """
    with transaction.atomic():
        workspace = _locked(request)
        if workspace.deleted_at is not None:
            if request.kind == Transition.Kind.STOP:
                raise Conflict("The workspace was deleted.", code="workspace-deleted")
            return False
        sandbox = latest_sandbox(workspace)
        if request.attempt_id not in (None, sandbox and sandbox.latest_attempt_id):
            return False
        ended = sandbox is None or sandbox.status in TERMINAL
        transition = (
            Transition.objects.open().select_for_update().filter(workspace=workspace).first()
        )
        if request.kind == Transition.Kind.STOP and (ended or transition is not None):
            return False
        if transition is not None and transition.kind == request.kind:
            return False
        _store(request, workspace, transition)
        if sandbox is not None and not ended:
            _begin_end(sandbox, request.reason)
    log.info(
        "transition_requested",
        workspace_id=str(workspace.pk),
        kind=request.kind,
        cause=request.cause,
    )
    return True


def _locked(request: TransitionRequest) -> Workspace:
    rows = Workspace.objects.select_for_update(no_key=True).owned_by(request.owner_user_id)
    if request.cause == Transition.Cause.EXPIRED:
        # Whoever saw that its time was over may have slept since, and others have stopped it and
        # started it again.
        rows = rows.filter(expires_at__lte=Now())
    workspace = rows.filter(pk=request.workspace_id).first()
    if workspace is None:
        raise NotFound("There is no such workspace.", code="workspace-not-found")
    assert isinstance(workspace, Workspace)
    return workspace


def _store(request: TransitionRequest, workspace: Workspace, earlier: Transition | None) -> None:
    who = request.requested_by or workspace.owner_user_id
    if earlier is None:
        Transition.objects.create(
            workspace=workspace,
            kind=request.kind,
            cause=request.cause,
            detail=request.detail,
            requested_by=who,
        )
    else:
        Transition.objects.filter(pk=earlier.pk).update(
            kind=request.kind,
            cause=request.cause,
            detail=request.detail,
            requested_by=who,
            retry_at=None,
        )
    Workspace.objects.filter(pk=workspace.pk).update(expires_at=None, updated_at=Now())
    announce(TRANSITIONS)
    workspaces.record_workspace_event(
        workspace,
        EVENTS[request.kind],
        request.reason,
        {"cause": request.cause, "requestedBy": who},
    )


def _begin_end(sandbox: Sandbox, reason: str) -> None:
    """Cancel the build, or have nothing new begin in the workspace and what runs in it end."""
    attempt = sandbox.latest_attempt
    if attempt is None:
        return
    job = BuildJob.objects.filter(attempt=attempt).order_by("-pk").first()
    if job is not None and cancel_job(job, reason=reason):
        return
    workspaces.begin_stop(attempt, message="The workspace's programs are being told to exit.")
    records().request_cancellation(attempt)


def cancel_build(job: BuildJob, *, requested_by: str) -> bool:
    """Cancel a build for an operator; False when its workspace was launched, or it has ended.

    What a worker has begun is cleared like that of a stop: until it is, the workspace does not
    start again, and so its next attempt never meets what is left of this one.
    """
    request = TransitionRequest(
        workspace_id=job.attempt.workspace_id,
        kind=Transition.Kind.STOP,
        owner_user_id=None,
        cause=Transition.Cause.OPERATOR,
        requested_by=requested_by,
    )
    with transaction.atomic():
        workspace = _locked(request)
        if not cancel_job(job, reason=f"Cancelled by {requested_by}."):
            return False
        # Counted with every claim: read after the write, which no claim gets past.
        begun = BuildJob.objects.filter(pk=job.pk, attempt_count__gt=0).exists()
        if begun and not Transition.objects.open().filter(workspace=workspace).exists():
            _store(request, workspace, None)
    return True


def expire_workspaces(*, limit: int = 100) -> int:
    """Have the workspaces stopped whose time to live is over; return how many."""
    expired = Workspace.objects.filter(expires_at__lte=Now()).order_by("expires_at")
    asked = 0
    for workspace_id in list(expired.values_list("pk", flat=True)[:limit]):
        request = TransitionRequest(
            workspace_id=workspace_id,
            kind=Transition.Kind.STOP,
            owner_user_id=None,
            cause=Transition.Cause.EXPIRED,
            requested_by="time to live",
        )
        with contextlib.suppress(Conflict, NotFound):
            asked += request_transition(request)
        # Of one that had ended by itself nothing was to be stopped.
        expired.filter(pk=workspace_id).update(expires_at=None)
    return asked


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStart:
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


def start_workspace(start: NewStart) -> StartedSandbox:
    """Start another attempt of a workspace that has ended, with its latest blueprint.

    Raises what ``workspaces.lifecycle.starting.startable`` and ``accounts.resolution`` raise,
    ``OwnerLimitReached``, ``Conflict`` (``nothing-published``) when there is no image to resume,
    and ``BadGateway`` (``queue-publish-failed``) after the failure was written.
    """
    found = workspaces.get_workspace(start.workspace_id, owner_user_id=start.owner_user_id)
    latest = latest_sandbox(found)
    with transaction.atomic():
        require_room_to_start(
            found.owner_user_id, new_workspace=False, spec=latest.spec if latest else {}
        )
        workspace = startable_workspace(start.workspace_id, start.owner_user_id)
        sandbox = latest_sandbox(workspace)
        if sandbox is None:
            raise Conflict("Nothing was ever started in this workspace.", code="nothing-published")
        credentials = (
            same_credentials(sandbox.latest_attempt, workspace.owner_user_id)
            if start.credentials is None
            else resolve_credentials(start.credentials, owner_user_id=workspace.owner_user_id)
        )
        attempt = workspaces.create_attempt(
            sandbox=sandbox,
            relation=_relation(start, sandbox),
            trigger_type=start.trigger_type,
            requested_by=start.requested_by or workspace.owner_user_id,
            credentials=credentials,
            placeholders=placeholders_for(sandbox.spec, credentials.references),
        )
        records().create_boot_run(attempt)
        job = create_job(attempt)
    publish_or_fail(job)
    return StartedSandbox(answer_of(job), replayed=False)


def _relation(start: NewStart, sandbox: Sandbox) -> Sandbox.Relation:
    published = BuildJob.objects.latest_published(sandbox) is not None
    if start.relation is None:
        return Sandbox.Relation.RESUME if published else Sandbox.Relation.RETRY
    if start.relation == Sandbox.Relation.RESUME and not published:
        raise Conflict(
            "No image of the workspace has been published yet; retry instead.",
            code="nothing-published",
        )
    return start.relation
