"""Settling a job that failed before a worker claimed it: writes that do not depend on each other.

The specification wants the failure written to job and attempt independently, and here it goes to
the boot run as well, so that one failing write does not stop the others. What a write misses, the
sweeper repairs from the job. A claimed job is its worker's to fail.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.db import transaction
from django.db.models.functions import Now

from workspaces import services as workspaces
from workspaces.lifecycle.records import records
from workspaces.models import BuildJob

log = structlog.get_logger(__name__)


def attempt_all(writes: dict[str, Callable[[], object]]) -> list[Exception]:
    """Run every write even when others fail; log and return the failures."""
    failures: list[Exception] = []
    for name, write in writes.items():
        try:
            write()
        except Exception as exc:
            log.exception("failure_write_failed", write=name)
            failures.append(exc)
    return failures


def fail_unclaimed_job(job: BuildJob, *, code: str, message: str) -> bool:
    """Write the failure of a job that nobody claimed: job, run, attempt and sandbox, each apart.

    Returns False, having written nothing, when a worker claimed the job in the meantime.
    """
    claimed = False

    def write_job() -> None:
        nonlocal claimed
        with transaction.atomic():
            changed = BuildJob.objects.filter(pk=job.pk, status=BuildJob.Status.QUEUED).update(
                status=BuildJob.Status.FAILED,
                error_code=code,
                error_message=message,
                finished_at=Now(),
                updated_at=Now(),
            )
            claimed = changed == 0

    def write_attempt() -> None:
        if not claimed:
            with transaction.atomic():
                workspaces.fail_attempt(job.attempt, code=code, message=message)

    def write_sandbox() -> None:
        if not claimed:
            with transaction.atomic():
                workspaces.refresh_sandbox(job.attempt_id)

    def write_run() -> None:
        if not claimed:
            records().end_boot_run(job.attempt, failed=True, code=code, message=message)

    attempt_all(
        {
            "job": write_job,
            "run": write_run,
            "attempt": write_attempt,
            "sandbox": write_sandbox,
        }
    )
    return not claimed
