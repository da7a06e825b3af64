"""Starting sandboxes, and starting them again.

``POST /v1/sandboxes`` and ``POST /v1/workspaces`` both end in :func:`start_sandbox`, which keeps
the specification's order of steps ("Sandbox creation").
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction

from accounts.resolution import Resolution
from controlplane.errors import BadGateway, Conflict, OwnerLimitReached
from controlplane.http.idempotency import key_reused
from controlplane.owner_limits import lock_owner
from workspaces import services as workspaces
from workspaces.blueprint import Blueprint, warnings_of
from workspaces.credentials.choice import choose_credentials, same_credentials
from workspaces.egress.bound.bindings import placeholders_for
from workspaces.lifecycle.failures import attempt_all
from workspaces.lifecycle.queueing import (
    PUBLISH_FAILED,
    create_job,
    publish_failure,
    publish_or_fail,
)
from workspaces.lifecycle.records import records
from workspaces.lifecycle.repository_owners import refuse_taken
from workspaces.lifecycle.sources import remember_references, select_sources
from workspaces.lifecycle.starting.start_limits import require_room_to_start
from workspaces.lifecycle.starting.start_request import (
    NewSandbox,
    StartedSandbox,
    answer_of,
    check_ceilings,
    check_egress,
    check_registry,
    infer_name,
    resolve_spec,
)
from workspaces.lifecycle.starting.startable import (
    latest_sandbox,
    startable_workspace,
    workspace_at_rest,
)
from workspaces.models import Attempt, BuildJob, Sandbox, SandboxRequest, Workspace
from workspaces.status import TERMINAL


def start_sandbox(request: NewSandbox) -> StartedSandbox:
    """Store the request for a sandbox and queue its build job.

    Raises ``Conflict`` (``idempotency-key-reused``, ``workspace-active``, ``repository-taken``,
    for a repeated request ``sandbox-superseded``), ``NotFound`` (``registry-not-found``,
    ``workspace-not-found``, ``credentials-not-found``), ``ValidationFailed``,
    ``OwnerLimitReached``, what ``workspaces.lifecycle.sources`` and ``accounts.resolution`` raise,
    or ``BadGateway`` (``queue-publish-failed``) after the failure was written.
    """
    if (earlier := _earlier_answer(request)) is not None:
        return earlier
    check_registry(request.registry_id)
    blueprint = Blueprint.parse(request.spec)
    # What the request alone decides comes before what others are asked about.
    check_ceilings(blueprint)
    check_egress(blueprint)
    selected = select_sources(
        blueprint,
        owner_user_id=request.owner_user_id,
        source=request.source_selection,
        dotfiles=request.dotfiles_selection,
        workspace_id=request.workspace_id,
    )
    blueprint = selected.blueprint
    spec = resolve_spec(blueprint)
    refuse_taken(request.registry_id, request.repository, owner_user_id=request.owner_user_id)
    credentials = choose_credentials(
        blueprint,
        beside_spec=request.credentials,
        workspace_id=request.workspace_id,
        owner_user_id=request.owner_user_id,
    )
    placeholders = placeholders_for(spec, credentials.references)
    name = request.name or infer_name(request, blueprint)
    try:
        job, answer = _persist(
            request, spec, credentials, placeholders, selected.references, name=name
        )
    except (IntegrityError, Conflict, OwnerLimitReached):
        # Another request with this key was quicker by a moment, and may have taken the last place;
        # its answer is ours too.
        earlier = _earlier_answer(request)
        if earlier is None:
            raise
        return earlier
    return _published(job, answer)


def _published(job: BuildJob, answer: dict[str, Any]) -> StartedSandbox:
    try:
        publish_or_fail(job)
    except BadGateway:
        # Another caller may have started one more attempt since, and answered with that.
        remembered = SandboxRequest.objects.filter(
            sandbox=job.attempt.sandbox, answer__jobId=str(job.pk)
        )
        attempt_all({"request": lambda: remembered.update(publish_failed=True)})
        raise
    return StartedSandbox(answer, replayed=False)


def _earlier_answer(request: NewSandbox) -> StartedSandbox | None:
    """Return the first answer to this key; None when the key is new or absent.

    When the build queue could not be reached then, the same sandbox gets another attempt.
    """
    if request.idempotency_key is None:
        return None
    earlier = SandboxRequest.objects.filter(
        owner_user_id=request.owner_user_id, key=request.idempotency_key
    ).first()
    if earlier is None:
        return None
    if earlier.request_hash != request.request_hash:
        raise key_reused()
    if _publish_failed(earlier):
        return _start_again(earlier)
    return StartedSandbox(earlier.answer, replayed=True)


def _publish_failed(earlier: SandboxRequest) -> bool:
    # The job says the same, should the request's own mark not have been written.
    job = BuildJob.objects.filter(pk=earlier.answer["jobId"], error_code=PUBLISH_FAILED)
    return earlier.publish_failed or job.exists()


def _start_again(earlier: SandboxRequest) -> StartedSandbox:
    """Start another attempt of the sandbox that could not be queued; one of several callers does.

    A live attempt that was started of it in the meantime answers this request too. Raises what
    :func:`retry_sandbox` raises, and ``BadGateway`` while the failure of the earlier attempt is not
    written everywhere, or a worker is at its job.
    """
    with transaction.atomic():
        # The owner before the workspace, like every start.
        lock_owner(earlier.owner_user_id)
        locked = SandboxRequest.objects.select_for_update().get(pk=earlier.pk)
        if not _publish_failed(locked):
            return StartedSandbox(locked.answer, replayed=True)
        present = _live_job(locked)
        job = present or _next_job(locked.sandbox)
        warnings = {"warnings": locked.answer["warnings"]}
        locked.answer, locked.publish_failed = answer_of(job) | warnings, False
        locked.save(update_fields=["answer", "publish_failed"])
    if present is not None:
        return StartedSandbox(locked.answer, replayed=True)
    return _published(job, locked.answer)


def _live_job(locked: SandboxRequest) -> BuildJob | None:
    """Return the job of the sandbox's attempt while that is live; None: another one may begin."""
    workspace = workspace_at_rest(locked.sandbox.workspace_id, locked.owner_user_id)
    _refuse_superseded(locked.sandbox, workspace)
    sandbox = latest_sandbox(workspace)
    assert sandbox is not None
    job = BuildJob.objects.filter(attempt=sandbox.latest_attempt_id).order_by("-pk").first()
    assert job is not None
    if sandbox.status in TERMINAL:
        # The message may have arrived all the same, and the job's failure not have been written:
        # a worker that had claimed it before the attempt ended may be building.
        if job.lease_expires_at is not None:
            raise publish_failure(locked.answer)
        return None
    if job.error_code == PUBLISH_FAILED:
        raise publish_failure(locked.answer)
    return job


def _next_job(sandbox: Sandbox) -> BuildJob:
    require_room_to_start(sandbox.owner_user_id, new_workspace=False, spec=sandbox.spec)
    return _retry(sandbox, requested_by=sandbox.owner_user_id, trigger_type=Attempt.TriggerType.API)


def _persist(
    request: NewSandbox,
    spec: dict[str, Any],
    credentials: Resolution,
    placeholders: Mapping[uuid.UUID, str],
    references: Mapping[str, uuid.UUID],
    *,
    name: str,
) -> tuple[BuildJob, dict[str, Any]]:
    """Write workspace, sandbox, attempt, job and remembered request in one transaction."""
    with transaction.atomic():
        require_room_to_start(
            request.owner_user_id, new_workspace=request.workspace_id is None, spec=spec
        )
        if request.workspace_id is None:
            workspace = workspaces.create_workspace(
                owner_user_id=request.owner_user_id, name=name, ttl_seconds=request.ttl_seconds
            )
        else:
            workspace = startable_workspace(request.workspace_id, request.owner_user_id)
            workspace.name = request.name or workspace.name
            if request.ttl_seconds is not None:
                workspace.ttl_seconds = request.ttl_seconds
            workspace.save(update_fields=["name", "ttl_seconds"])
        sandbox = Sandbox.objects.create(
            workspace=workspace,
            owner_user_id=request.owner_user_id,
            relation=request.relation,
            registry_id=request.registry_id,
            repository=request.repository,
            tag=request.tag,
            spec=spec,
        )
        remember_references(sandbox, references)
        attempt = workspaces.create_attempt(
            sandbox=sandbox,
            relation=request.relation,
            trigger_type=Attempt.TriggerType.API,
            requested_by=request.owner_user_id,
            credentials=credentials,
            placeholders=placeholders,
        )
        records().create_boot_run(attempt)
        job = create_job(attempt)
        answer = answer_of(job)
        answer["warnings"] = warnings_of(request.spec) + answer["warnings"]
        if request.idempotency_key is not None:
            SandboxRequest.objects.create(
                owner_user_id=request.owner_user_id,
                key=request.idempotency_key,
                request_hash=request.request_hash,
                sandbox=sandbox,
                answer=answer,
            )
    return job, answer


def retry_sandbox(sandbox: Sandbox, *, requested_by: str) -> BuildJob:
    """Start another attempt of a sandbox that ended, with the same blueprint and accounts.

    Raises ``Conflict`` while the sandbox or a newer one of its workspace is live, and when one of
    the accounts cannot be used any more; ``BadGateway`` when the queue cannot be reached.
    """
    with transaction.atomic():
        job = _retry(sandbox, requested_by=requested_by, trigger_type=Attempt.TriggerType.MANUAL)
    publish_or_fail(job)
    return job


def _retry(sandbox: Sandbox, *, requested_by: str, trigger_type: Attempt.TriggerType) -> BuildJob:
    workspace = startable_workspace(sandbox.workspace_id, sandbox.owner_user_id)
    _refuse_superseded(sandbox, workspace)
    credentials = same_credentials(sandbox.latest_attempt, sandbox.owner_user_id)
    attempt = workspaces.create_attempt(
        sandbox=sandbox,
        relation=Sandbox.Relation.RETRY,
        trigger_type=trigger_type,
        requested_by=requested_by,
        credentials=credentials,
        placeholders=placeholders_for(sandbox.spec, credentials.references),
    )
    records().create_boot_run(attempt)
    return create_job(attempt)


def _refuse_superseded(sandbox: Sandbox, workspace: Workspace) -> None:
    if workspace.latest_sandbox_id != sandbox.pk:
        raise Conflict("A newer sandbox of this workspace exists.", code="sandbox-superseded")
