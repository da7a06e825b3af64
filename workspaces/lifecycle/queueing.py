"""The build job of an attempt: created, published, cancelled, and published again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from structlog.contextvars import bind_contextvars

from controlplane.errors import BadGateway
from controlplane.work.amqp import BrokerError
from controlplane.work.models import heartbeat_stale
from workspaces.lifecycle import step_statements
from workspaces.lifecycle.build_messages import BUILD_REQUESTED
from workspaces.lifecycle.failures import fail_unclaimed_job
from workspaces.lifecycle.records import records
from workspaces.models import Attempt, BuildJob

log = structlog.get_logger(__name__)

PUBLISH_FAILED = "queue-publish-failed"
RUNNING = BuildJob.Status.RUNNING


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
        raise publish_failure(
            {
                "sandboxId": str(sandbox.pk),
                "workspaceId": str(sandbox.workspace_id),
                "attemptId": str(job.attempt_id),
                "runId": str(job.attempt.run_id),
                "jobId": str(job.pk),
            }
        ) from exc


def publish_failure(answer: Mapping[str, Any]) -> BadGateway:
    error = BadGateway(
        "The build queue could not be reached; the sandbox was recorded as failed.",
        code=PUBLISH_FAILED,
    )
    for member in ("sandboxId", "workspaceId", "attemptId", "runId", "jobId"):
        error.members[member] = answer[member]
    return error


def cancel_job(job: BuildJob, *, reason: str) -> bool:
    """Cancel a job that has not launched its workspace yet; False when it is too late.

    A worker that is at it loses its claim with this write, stops the build within a heartbeat and
    removes what it started.
    """
    with transaction.atomic():
        before = step_statements.cancel(job.pk, reason=reason)
        # Not while a worker builds, who may have something to record that is not stored yet, or
        # writes to the record: it ends its part in order, and then the run.
        if before is not None and not (
            before == RUNNING or records().is_being_recorded(job.attempt)
        ):
            records().end_boot_run(job.attempt, failed=False, code="cancelled", message=reason)
    return before is not None


def requeue_job(job: BuildJob) -> bool:
    """Publish the message of an unfinished job again, and end the lease of a dead worker.

    Returns False for a job that is final. Harmless while a worker is at it: its lease stays.
    Raises ``BadGateway`` when the queue cannot be reached.
    """
    stale = heartbeat_stale()
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
