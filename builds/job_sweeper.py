"""Finding what nobody works on: jobs without a message, jobs of dead workers, half-written ends."""

from __future__ import annotations

import uuid
from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models import OuterRef, Q, Subquery
from django.db.models.functions import Now

from runs.models import Run
from workspaces import services as workspaces
from workspaces.lifecycle.records import records
from workspaces.models import Attempt, BuildJob, RuntimeInstance

log = structlog.get_logger(__name__)

END_BOOT_RUNS_AFTER = timedelta(seconds=30)


def claimable_jobs(
    *, overdue: timedelta, stale: timedelta, limit: int, expire: bool, engine: str = ""
) -> list[uuid.UUID]:
    """Return up to ``limit`` jobs that nobody is at, longest-waiting first.

    ``expire`` also ends the leases of workers that stopped beating ``stale`` ago. Queued and
    leased jobs are two questions, each on its own partial index. ``engine``: those alone that a
    worker of it may claim.
    """
    ours = BuildJob.objects.of_engine(engine)
    if expire:
        ended = BuildJob.objects.expire_leases_of_dead_workers(stale=stale)
        if ended:
            log.warning("leases_of_dead_workers_ended", jobs=ended)
    found = list(ours.expired().values_list("pk", flat=True)[:limit])
    if len(found) < limit:
        queued = ours.overdue(overdue=overdue, engine=engine).values_list("pk", flat=True)
        found += list(queued[: limit - len(found)])
    return found


def repair_attempts(*, limit: int = 100) -> int:
    """Settle attempts whose job ended without them; return how many.

    A failure is written to job, runtime and attempt independently, so any of them may be missing.
    """
    _fail_jobs_of_ended_attempts()
    _fail_runtimes_of_ended_attempts(limit)
    _end_boot_runs_of_ended_attempts(limit)
    latest = BuildJob.objects.filter(attempt_id=OuterRef("pk")).order_by("-id")
    broken = (
        Attempt.objects.filter(status__in=[Attempt.Status.QUEUED, Attempt.Status.RUNNING])
        .annotate(job_status=Subquery(latest.values("status")[:1]))
        .filter(job_status__in=[BuildJob.Status.FAILED, BuildJob.Status.CANCELLED])
        .order_by("id")[:limit]
    )
    repaired = 0
    for attempt in broken:
        with transaction.atomic():
            job = (
                BuildJob.objects.select_for_update(skip_locked=True)
                .filter(attempt=attempt)
                .order_by("-id")
                .first()
            )
            if job is None:
                continue
            if job.status == BuildJob.Status.FAILED:
                workspaces.fail_runtime(attempt, code=job.error_code, message=job.error_message)
                changed = workspaces.fail_attempt(
                    attempt, code=job.error_code, message=job.error_message
                )
            elif job.status == BuildJob.Status.CANCELLED:
                changed = workspaces.cancel_attempt(attempt, reason=job.error_message)
            else:
                continue
        repaired += int(changed)
    if repaired:
        log.warning("attempts_repaired", attempts=repaired)
    return repaired


def _fail_jobs_of_ended_attempts() -> None:
    """Fail jobs that nobody claimed and whose attempt is over: nobody waits for their workspace."""
    for job in BuildJob.objects.filter(
        status=BuildJob.Status.QUEUED, attempt__status__in=Attempt.TERMINAL
    ).select_related("attempt"):
        BuildJob.objects.filter(pk=job.pk, status=BuildJob.Status.QUEUED).update(
            status=BuildJob.Status.FAILED,
            error_code=job.attempt.error_code,
            error_message=job.attempt.error_message or "The attempt ended before its job began.",
            finished_at=Now(),
            updated_at=Now(),
        )
        log.warning("job_of_ended_attempt_failed", job_id=str(job.pk))


def _fail_runtimes_of_ended_attempts(limit: int) -> None:
    """Fail runtimes that are awaited although their attempt has failed or was cancelled."""
    for runtime in RuntimeInstance.objects.filter(
        status=RuntimeInstance.Status.PENDING,
        attempt__status__in=[Attempt.Status.FAILED, Attempt.Status.CANCELLED],
    ).select_related("attempt")[:limit]:
        attempt = runtime.attempt
        with transaction.atomic():
            workspaces.fail_runtime(attempt, code=attempt.error_code, message=attempt.error_message)
        log.warning("runtime_of_ended_attempt_failed", run_id=str(runtime.run_id))


def _end_boot_runs_of_ended_attempts(limit: int) -> None:
    """End boot runs whose attempt has failed or was cancelled, unless somebody is at them.

    Whoever ended the attempt ends the run too, and a run worker reads what its container still
    holds; this is for when both have died.
    """
    for run in (
        Run.objects.open()
        .filter(
            Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=Now()),
            mode=Run.Mode.BOOT,
            attempt__status__in=[Attempt.Status.FAILED, Attempt.Status.CANCELLED],
            attempt__finished_at__lt=Now() - END_BOOT_RUNS_AFTER,
        )
        .select_related("attempt")[:limit]
    ):
        attempt = run.attempt
        assert attempt is not None
        cancelled = attempt.status == Attempt.Status.CANCELLED
        # In a transaction it waits for no egress proxy: a later pass finds that it had its time.
        with transaction.atomic():
            ended = records().end_boot_run(
                attempt,
                failed=not cancelled,
                code=attempt.error_code,
                message=attempt.error_message,
            )
        if ended:
            log.warning("boot_run_of_ended_attempt_ended", run_id=str(run.pk))
