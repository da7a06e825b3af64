"""Settling a job that failed or was cancelled: writes that do not depend on each other.

The specification wants the failure written to job, runtime and attempt independently, and here it
goes to the boot run as well, so that one failing write does not stop the others. What a write
misses, the sweeper repairs from the job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import structlog
from django.db import DatabaseError, InterfaceError, transaction
from django.db.models.functions import Now

from controlplane.database.retries import retry_database
from controlplane.errors import JobError
from workspaces import services as workspaces
from workspaces.lifecycle.records import records
from workspaces.models import Attempt, BuildJob, Fence, LeaseLost

log = structlog.get_logger(__name__)

INTERNAL_ERROR = "internal-error"
INTERNAL_MESSAGE = "Something went wrong on our side; the worker's log knows more."


def describe(error: BaseException) -> tuple[str, str]:
    """Return code and message to store for ``error``.

    A :class:`JobError` speaks for itself. Anything else is a fault of ours: its text may hold
    argv, SQL or secrets, so it stays in the log.
    """
    if isinstance(error, JobError):
        return error.code, error.message
    return INTERNAL_ERROR, INTERNAL_MESSAGE


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


def fail_claimed_job(
    fence: Fence,
    attempt: Attempt,
    error: BaseException,
    *,
    timeout: float,
    cancelled: threading.Event | None = None,
) -> list[Exception]:
    """Write the failure of a job that ``fence`` holds: job, runtime, boot run, attempt, each apart.

    Each write waits up to ``patience`` seconds for a database that is away, less when ``cancelled``
    is set; what is missing in the end is repaired by a sweeper, or the job is claimed again.

    Raises ``LeaseLost``, having written nothing, when the job is somebody else's by now.
    """
    code, message = describe(error)

    def write_job() -> None:
        with transaction.atomic():
            BuildJob.objects.write(
                fence,
                status=BuildJob.Status.FAILED,
                error_code=code,
                error_message=message,
                finished_at=Now(),
                lease_expires_at=None,
            )

    def write_runtime() -> None:
        with transaction.atomic():
            BuildJob.objects.lock(fence)
            workspaces.fail_runtime(attempt, code=code, message=message)

    def write_attempt() -> None:
        with transaction.atomic():
            BuildJob.objects.lock(fence)
            workspaces.fail_attempt(attempt, code=code, message=message)

    def write_run() -> None:
        with transaction.atomic():
            BuildJob.objects.lock(fence)
            records().end_boot_run(attempt, failed=True, code=code, message=message)

    # The run before the attempt: others end the runs of attempts that are over, with less to say.
    writes = {
        "job": write_job,
        "runtime": write_runtime,
        "run": write_run,
        "attempt": write_attempt,
    }
    failures = attempt_all(
        {
            name: partial(retry_database, write, timeout=timeout, cancelled=cancelled)
            for name, write in writes.items()
        }
    )
    lost = [failure for failure in failures if isinstance(failure, LeaseLost)]
    if len(lost) == len(writes):
        raise lost[0]
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


def end_cancelled_boot_run(job: BuildJob) -> None:
    """End the boot run of a job that was cancelled while a worker was at it, once that has stopped.

    What fails here is done by a sweeper.
    """
    try:
        current = BuildJob.objects.get(pk=job.pk)
        if current.status == BuildJob.Status.CANCELLED:
            records().end_boot_run(
                job.attempt, failed=False, code="cancelled", message=current.error_message
            )
    except (DatabaseError, InterfaceError) as exc:
        log.warning("boot_run_not_ended", reason=type(exc).__name__)
