"""Starting sandboxes, and what operators do to their jobs: retry, cancel, requeue.

``POST /v1/sandboxes`` and ``POST /v1/workspaces`` both end in :func:`start_sandbox`, which keeps
the specification's order of steps ("Sandbox creation").
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from structlog.contextvars import bind_contextvars

from accounts.resolution import Resolution
from controlplane.errors import (
    BadGateway,
    Conflict,
    Fault,
    NotFound,
    OwnerLimitReached,
    ValidationFailed,
)
from controlplane.http.idempotency import hash_of, key_reused
from controlplane.work.amqp import BrokerError
from workspaces import services as workspaces
from workspaces.blueprint import Blueprint, warnings_of
from workspaces.credentials.choice import choose_credentials, same_credentials
from workspaces.env_warnings import env_warnings
from workspaces.lifecycle.build_messages import BUILD_REQUESTED
from workspaces.lifecycle.failures import attempt_all, fail_unclaimed_job
from workspaces.lifecycle.records import records
from workspaces.lifecycle.repositories import refuse_taken
from workspaces.lifecycle.sources import remember_references, select_sources
from workspaces.lifecycle.start_limits import require_room_to_start
from workspaces.lifecycle.startable import startable_workspace
from workspaces.models import Attempt, BuildJob, Sandbox, SandboxRequest
from workspaces.packages.standardization import standardize_with_index
from workspaces.status import SurfacedStatus

log = structlog.get_logger(__name__)

NAME_MAX_LENGTH = 120
PUBLISH_FAILED = "queue-publish-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSandbox:
    """What a client asks for when it starts a sandbox; ``spec`` is still the client's JSON."""

    owner_user_id: str
    registry_id: str
    repository: str
    tag: str
    spec: object
    name: str | None = None
    workspace_id: uuid.UUID | None = None
    relation: Sandbox.Relation = Sandbox.Relation.LAUNCH
    source_selection: Mapping[str, Any] | None = None
    dotfiles_selection: Mapping[str, Any] | None = None
    credentials: Mapping[str, Any] | None = None
    ttl_seconds: int | None = None
    idempotency_key: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    """The request's body as it was sent, to tell a repeated request from a different one."""

    @property
    def request_hash(self) -> str:
        """Return the SHA-256 of the body, whatever the order of its members."""
        return hash_of(self.body)


@dataclass(frozen=True, slots=True)
class StartedSandbox:
    """The answer to a request that started a sandbox, perhaps an earlier one."""

    answer: dict[str, Any]
    replayed: bool


def start_sandbox(request: NewSandbox) -> StartedSandbox:
    """Store the request for a sandbox and queue its build job.

    Raises ``Conflict`` (``idempotency-key-reused``, ``workspace-active``, ``repository-taken``),
    ``NotFound``
    (``registry-not-found``, ``workspace-not-found``, ``credentials-not-found``),
    ``ValidationFailed``, ``OwnerLimitReached``, what ``workspaces.lifecycle.sources`` and
    ``accounts.resolution`` raise, or ``BadGateway`` (``queue-publish-failed``) after the failure
    was written.
    """
    if (earlier := _earlier_answer(request)) is not None:
        return earlier
    check_registry(request.registry_id)
    blueprint = Blueprint.parse(request.spec)
    selected = select_sources(
        blueprint,
        owner_user_id=request.owner_user_id,
        source=request.source_selection,
        dotfiles=request.dotfiles_selection,
        workspace_id=request.workspace_id,
    )
    blueprint = selected.blueprint
    check_ceilings(blueprint)
    refuse_taken(request.registry_id, request.repository, owner_user_id=request.owner_user_id)
    credentials = choose_credentials(
        blueprint,
        beside_spec=request.credentials,
        workspace_id=request.workspace_id,
        owner_user_id=request.owner_user_id,
    )
    spec = resolve_spec(blueprint)
    name = request.name or infer_name(request, blueprint)
    try:
        job, answer = _persist(request, spec, credentials, selected.references, name=name)
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
        remembered = SandboxRequest.objects.filter(sandbox=job.attempt.sandbox)
        attempt_all({"request": lambda: remembered.update(publish_failed=True)})
        raise
    return StartedSandbox(answer, replayed=False)


def check_registry(registry_id: str) -> None:
    """Raise ``NotFound`` unless ``registry_id`` is the configured registry."""
    if registry_id != settings.REGISTRY_NAME:
        raise NotFound(
            "This installation has no such registry.",
            code="registry-not-found",
            errors=[
                Fault(
                    "unknown-registry",
                    f'The configured registry is "{settings.REGISTRY_NAME}".',
                    pointer="/registryId",
                )
            ],
        )


def check_ceilings(blueprint: Blueprint) -> None:
    """Raise ``ValidationFailed`` for resources above the operator's ceilings."""
    resources = blueprint.runtime.resources
    faults = [
        Fault(
            "above-ceiling",
            f"This installation allows {ceiling:g} at the most.",
            pointer=f"/spec/runtime/resources/{member}",
        )
        for member, wanted, ceiling in (
            ("memoryMb", resources.memory_mb, settings.WORKSPACE_MAX_MEMORY_MB),
            ("cpus", resources.cpus, settings.WORKSPACE_MAX_CPUS),
            ("pids", resources.pids, settings.WORKSPACE_MAX_PIDS),
        )
        if wanted is not None and wanted > ceiling
    ]
    if faults:
        raise ValidationFailed(faults)


def resolve_spec(blueprint: Blueprint) -> dict[str, Any]:
    """Return the spec to store: all defaults, packages by the distribution's names, no credentials.

    Raises ``ValidationFailed`` with every package that cannot be standardized, ``BadGateway``
    (``package-index-unavailable``) when that takes an index that was never read.
    """
    spec: dict[str, Any] = dict(blueprint.to_wire())
    spec.pop("credentials", None)
    family: str = blueprint.target.os.family
    if family == "auto":
        family = settings.SVC_DEFAULT_OS_FAMILY
    packages = standardize_with_index(blueprint.tooling.packages, family)
    spec["tooling"] = {
        **spec["tooling"],
        "packages": [
            {"id": package.id, **({"version": package.version} if package.version else {})}
            for package in packages
        ],
    }
    return spec


def infer_name(request: NewSandbox, blueprint: Blueprint) -> str:
    """Return a name for people, out of the repository's last part, the tag and the ref."""
    ref = blueprint.sources.workspace.ref if blueprint.sources.workspace else None
    parts = [request.repository.rsplit("/", 1)[-1], request.tag, ref or ""]
    words = [word for part in parts for word in re.split(r"[\s._/-]+", part) if word]
    return " ".join(word[:1].upper() + word[1:] for word in words)[:NAME_MAX_LENGTH].strip()


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

    Raises what :func:`retry_sandbox` raises, and ``BadGateway`` while the failure of the earlier
    attempt is not written everywhere.
    """
    try:
        return _start_again_locked(earlier)
    except Conflict as exc:
        if exc.code == "workspace-active":
            raise _publish_failure(earlier.answer) from exc
        raise


def _start_again_locked(earlier: SandboxRequest) -> StartedSandbox:
    with transaction.atomic():
        locked = SandboxRequest.objects.select_for_update().get(pk=earlier.pk)
        if not _publish_failed(locked):
            return StartedSandbox(locked.answer, replayed=True)
        sandbox = locked.sandbox
        require_room_to_start(sandbox.owner_user_id, new_workspace=False)
        job = _retry(
            sandbox, requested_by=sandbox.owner_user_id, trigger_type=Attempt.TriggerType.API
        )
        warnings = {"warnings": locked.answer["warnings"]}
        locked.answer, locked.publish_failed = answer_of(job) | warnings, False
        locked.save(update_fields=["answer", "publish_failed"])
    return _published(job, locked.answer)


def _persist(
    request: NewSandbox,
    spec: dict[str, Any],
    credentials: Resolution,
    references: Mapping[str, uuid.UUID],
    *,
    name: str,
) -> tuple[BuildJob, dict[str, Any]]:
    """Write workspace, sandbox, attempt, job and remembered request in one transaction."""
    with transaction.atomic():
        require_room_to_start(request.owner_user_id, new_workspace=request.workspace_id is None)
        if request.workspace_id is None:
            workspace = workspaces.create_workspace(
                owner_user_id=request.owner_user_id, name=name, ttl_seconds=request.ttl_seconds
            )
        else:
            workspace = startable_workspace(request.workspace_id, request.owner_user_id)
            if request.ttl_seconds is not None:
                workspace.ttl_seconds = request.ttl_seconds
                workspace.save(update_fields=["ttl_seconds"])
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


def answer_of(job: BuildJob) -> dict[str, Any]:
    """Return the answer to the request that has made ``job``."""
    attempt = job.attempt
    return {
        "sandboxId": str(attempt.sandbox_id),
        "workspaceId": str(attempt.workspace_id),
        "attemptId": str(attempt.pk),
        "runId": str(attempt.run_id),
        "jobId": str(job.pk),
        "name": attempt.sandbox.workspace.name,
        "status": SurfacedStatus.QUEUED.value,
        "registryId": job.registry_id,
        "repository": job.repository,
        "tag": job.tag,
        "warnings": env_warnings(attempt.sandbox.spec.get("runtime", {}).get("env", {})),
    }


def create_job(attempt: Attempt) -> BuildJob:
    """Create the queued job of an attempt."""
    sandbox = attempt.sandbox
    return BuildJob.objects.create(
        attempt=attempt,
        registry_id=sandbox.registry_id,
        repository=sandbox.repository,
        tag=sandbox.tag,
        max_attempts=settings.WORKSPACE_BUILD_JOB_MAX_ATTEMPTS,
    )


def publish_or_fail(job: BuildJob) -> None:
    """Publish the job's message; on failure write it to job, attempt and sandbox and raise.

    A crash before or during this leaves a queued job without a message, which any worker's sweeper
    picks up. When a worker was quicker than the failing publish, the job goes on and nothing fails.
    """
    bind_contextvars(job_id=str(job.pk), run_id=str(job.attempt.run_id))
    try:
        BUILD_REQUESTED.publish(job.pk)
    except BrokerError as exc:
        log.warning("job_publish_failed", job_id=str(job.pk), reason=str(exc))
        if not fail_unclaimed_job(
            job, code=PUBLISH_FAILED, message="The build queue could not be reached."
        ):
            return
        sandbox = job.attempt.sandbox
        raise _publish_failure(
            {
                "sandboxId": str(sandbox.pk),
                "workspaceId": str(sandbox.workspace_id),
                "attemptId": str(job.attempt_id),
                "runId": str(job.attempt.run_id),
                "jobId": str(job.pk),
            }
        ) from exc


def _publish_failure(answer: Mapping[str, Any]) -> BadGateway:
    error = BadGateway(
        "The build queue could not be reached; the sandbox was recorded as failed.",
        code=PUBLISH_FAILED,
    )
    for member in ("sandboxId", "workspaceId", "attemptId", "runId", "jobId"):
        error.members[member] = answer[member]
    return error


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
    if workspace.latest_sandbox_id != sandbox.pk:
        raise Conflict("A newer sandbox of this workspace exists.", code="sandbox-superseded")
    attempt = workspaces.create_attempt(
        sandbox=sandbox,
        relation=Sandbox.Relation.RETRY,
        trigger_type=trigger_type,
        requested_by=requested_by,
        credentials=same_credentials(sandbox.latest_attempt, sandbox.owner_user_id),
    )
    records().create_boot_run(attempt)
    return create_job(attempt)


def cancel_job(job: BuildJob, *, reason: str) -> bool:
    """Cancel a job that has not launched its workspace yet; False when it is too late.

    A worker that is at it loses its claim with this write, stops the build within a heartbeat and
    removes what it started.
    """
    with transaction.atomic():
        changed = (
            BuildJob.objects.filter(pk=job.pk)
            .exclude(status__in=[BuildJob.Status.FAILED, BuildJob.Status.CANCELLED])
            .exclude(status=BuildJob.Status.SUCCEEDED, lease_expires_at__isnull=True)
            .update(
                status=BuildJob.Status.CANCELLED,
                error_message=reason,
                finished_at=Now(),
                lease_expires_at=None,
                updated_at=Now(),
            )
        )
        if changed:
            workspaces.stop_runtime(job.attempt, code="cancelled", message=reason)
            # Not while a worker writes to the record: it ends its part in order, and then the run.
            if not records().is_being_recorded(job.attempt):
                records().end_boot_run(job.attempt, failed=False, code="cancelled", message=reason)
            workspaces.cancel_attempt(job.attempt, reason=reason)
    return bool(changed)


def requeue_job(job: BuildJob) -> bool:
    """Publish the message of an unfinished job again, and end the lease of a dead worker.

    Returns False for a job that is final. Harmless while a worker is at it: its lease stays.
    Raises ``BadGateway`` when the queue cannot be reached.
    """
    stale = timedelta(milliseconds=settings.WORKER_HEARTBEAT_STALE_MS)
    BuildJob.objects.filter(pk=job.pk).expire_leases_of_dead_workers(stale=stale)
    current = BuildJob.objects.filter(pk=job.pk).first()
    waiting = current is not None and (
        current.status == BuildJob.Status.QUEUED or current.lease_expires_at is not None
    )
    if not waiting:
        return False
    try:
        BUILD_REQUESTED.publish(job.pk)
    except BrokerError as exc:
        raise BadGateway("The build queue could not be reached.", code=PUBLISH_FAILED) from exc
    return True
