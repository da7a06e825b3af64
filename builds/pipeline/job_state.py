"""One claimed job while a worker is at it: its fence, who may stop it, and every write to its rows.

Whoever works on a job writes to its rows through here and nowhere else, so that each write asks for
the fence (:class:`workspaces.models.Fence`) and waits for a database that is away.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import structlog
from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    close_old_connections,
    transaction,
)
from django.db.models.functions import Now

from builds.images.compiler import PublishedImage
from builds.pipeline.job_slots import JobSlot
from builds.pipeline.source_writer import LAST_SECONDS, RECORD_ENDED
from controlplane.database.retries import DATABASE_RETRY_SECONDS, retry_database
from controlplane.errors import JobError
from controlplane.work.leases import lease_lost
from runs.boot_runs import BootRuns, StartedJob, start_job
from workspaces import services as workspaces
from workspaces.lifecycle import step_statements
from workspaces.lifecycle.failures import attempt_all
from workspaces.lifecycle.step_statements import Publication
from workspaces.models import Attempt, BuildJob, EgressNetwork, Fence, LeaseLost
from workspaces.runtimes.base import LaunchedRuntime

log = structlog.get_logger(__name__)

T = TypeVar("T")

ATTEMPT_OVER = "attempt-over"
ATTEMPTS_EXHAUSTED = "attempts-exhausted"
INTERNAL_ERROR = "internal-error"
INTERNAL_MESSAGE = "Something went wrong on our side; the worker's log has the details."


class ShutdownError(Exception):
    """The worker was told to stop at once; the job was given back."""


@dataclass(slots=True, eq=False)
class JobState:
    """One job and the lease that this worker has of it.

    Writes raise ``LeaseLost`` when the job is another worker's by now, or was cancelled; writes and
    reads wait for a database that is away, until :attr:`cancelled` is set.
    """

    row: BuildJob
    slot: JobSlot | None = None
    """The slot that a worker has given the job; None: nobody counts."""
    on_started: Callable[[], None] = field(default=lambda: None)
    """Called once the workspace's container has started, before its boot is waited for."""
    on_booted: Callable[[], None] = field(default=lambda: None)
    """Called once it has booted, on the thread that goes on."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when the work is to stop."""
    shutdown: bool = False
    _started: StartedJob | None = None

    @classmethod
    def claim(
        cls, job_id: uuid.UUID, *, worker_id: str, lease: timedelta, engine: str = ""
    ) -> JobState | None:
        """Claim a job for ``lease``; None when it is not claimable or another worker has it."""
        row = BuildJob.objects.claim(job_id, worker_id=worker_id, lease=lease, engine=engine)
        return None if row is None else cls(row)

    @property
    def id(self) -> uuid.UUID:
        """The job's id."""
        return self.row.pk

    @property
    def attempt(self) -> Attempt:
        """The attempt that the job is for."""
        return self.row.attempt

    @property
    def fence(self) -> Fence:
        """The lease that the claim has acquired."""
        return self.row.fence

    @property
    def is_built(self) -> bool:
        """Whether the image is published: an earlier worker's claim may have got as far."""
        return self.row.status == BuildJob.Status.SUCCEEDED

    # ------------------------------------------------------------ how others stop the work

    def lose(self) -> None:
        """Stop the work because the lease is lost."""
        self.cancelled.set()

    def shut_down(self) -> None:
        """Stop the work and give the job back."""
        self.shutdown = True
        self.cancelled.set()

    # ------------------------------------------------------------ reads and writes

    def read(self, question: Callable[[], T], *, timeout: float = DATABASE_RETRY_SECONDS) -> T:
        """Return what ``question`` asks the database for."""
        return retry_database(question, timeout=timeout, cancelled=self.cancelled)

    def write(
        self,
        change: Callable[[], T],
        *,
        timeout: float = DATABASE_RETRY_SECONDS,
        **values: Any,
    ) -> T:
        """Write ``values`` to the job's row, then make ``change``, in one transaction.

        Either of them locks the row first, so that the lease cannot be lost until the end of it.
        """

        def transact() -> T:
            with transaction.atomic():
                if values:
                    BuildJob.objects.write(self.fence, **values)
                else:
                    BuildJob.objects.lock(self.fence)
                return change()

        return self.read(transact, timeout=timeout)

    def require_lease(self) -> None:
        """Raise ``LeaseLost`` unless the job is still ours.

        Neither registry nor engine knows a fence: a worker that slept must not replace there what
        its successor has made.
        """
        self.read(lambda: BuildJob.objects.require(self.fence))

    # ------------------------------------------------------------ from the first to the last write

    def require_attempts_left(self) -> None:
        """Fail the job when as many workers as may have had it, and raise that."""
        if self.row.attempt_count > self.row.max_attempts:
            exhausted = JobError(
                ATTEMPTS_EXHAUSTED,
                f"{self.row.max_attempts} workers claimed this job and none of them finished it.",
            )
            self.fail(exhausted, timeout=0)
            raise exhausted

    def require_build_slot(self) -> None:
        """Go on with a build slot; raise :class:`BuildSlotNeeded` when none is free."""
        if self.slot is not None:
            self.slot.require_build()
        if self.row.lane != BuildJob.Lane.BUILD:
            self.write(lambda: None, lane=BuildJob.Lane.BUILD)

    def wait_for_build_slot(self) -> None:
        """Queue the job for a build slot; raise ``LeaseLost``."""
        if not self.read(lambda: BuildJob.objects.wait_for_build_slot(self.fence)):
            raise LeaseLost(f"{self.id} is not held any more")

    def start(self) -> None:
        """Write that the attempt runs, and its boot run with it.

        Raises ``JobError`` when the attempt is over, or the record of its boot run: an earlier
        worker failed and could write that to the attempt only, or it launched the workspace and
        died, and the boot failed meanwhile. Nothing runs without a record.
        """
        attempt = self.attempt
        if attempt.status in Attempt.TERMINAL:
            raise JobError(attempt.error_code or ATTEMPT_OVER, attempt.error_message)
        started = self.read(lambda: start_job(attempt, self.fence))
        run = started.run
        if run.status in run.TERMINAL:
            raise JobError(
                RECORD_ENDED,
                run.error_message or "The record of the workspace's start has already ended.",
            )
        self._started = started

    @property
    def begun_with(self) -> StartedJob:
        """The boot run and what else the job needs, as it was at the start."""
        assert self._started is not None, "the job was not started"
        return self._started

    def publish(self, publication: Publication) -> None:
        """Write the published image, once; to be called in a transaction, or as one."""
        step_statements.publish(self.fence, publication)

    def finish_launch(self, launched: LaunchedRuntime) -> None:
        """Write that the workspace runs, and release the job for good."""
        self.read(lambda: step_statements.finish(self.fence, launched))

    # ------------------------------------------------------------ the ends that are none

    def fail(
        self, error: BaseException, *, timeout: float = DATABASE_RETRY_SECONDS
    ) -> list[Exception]:
        """Write the failure to job, runtime, attempt and boot run, all in one transaction.

        The specification wants that one write that fails does not stop the others: then each is
        tried apart. What is missing in the end, and returned here, a sweeper repairs from the job,
        or the job is claimed again. Raises ``LeaseLost``, having written nothing, when the job is
        another worker's by now.
        """
        code, message = describe(error)
        told: dict[str, str] = {"code": code, "message": message}
        self._settle_egress()
        try:
            self.read(partial(self._fail_at_once, **told), timeout=timeout)
        except LeaseLost:
            raise
        except Exception as exc:
            log.exception("failure_write_failed", write="all")
            was_away = isinstance(exc, OperationalError | InterfaceError)
            return self._fail_apart(timeout=0 if was_away else timeout, **told)
        return []

    @transaction.atomic
    def _fail_at_once(self, *, code: str, message: str) -> None:
        step_statements.fail(self.fence, code=code, message=message)
        BootRuns().end_boot_run(self.attempt, failed=True, code=code, message=message)

    def _fail_apart(self, *, timeout: float, **told: str) -> list[Exception]:
        attempt = self.attempt
        # The run before the attempt: others end the runs of attempts that are over, with less to
        # say.
        writes: dict[str, Callable[[], object]] = {
            "job": partial(
                self.write,
                lambda: None,
                timeout=timeout,
                status=BuildJob.Status.FAILED,
                error_code=told["code"],
                error_message=told["message"],
                finished_at=Now(),
                lease_expires_at=None,
            ),
            "runtime": partial(
                self.write, lambda: workspaces.fail_runtime(attempt, **told), timeout=timeout
            ),
            "run": partial(
                self.write,
                lambda: BootRuns().end_boot_run(attempt, failed=True, **told),
                timeout=timeout,
            ),
            "attempt": partial(
                self.write, lambda: workspaces.fail_attempt(attempt, **told), timeout=timeout
            ),
        }
        failures = attempt_all(writes)
        lost = [failure for failure in failures if isinstance(failure, LeaseLost)]
        if len(lost) == len(writes):
            raise lost[0]
        return failures

    def _settle_egress(self) -> None:
        try:
            if not EgressNetwork.objects.filter(attempt=self.attempt).exists():
                return
            # Behind the fence, where it only asks: what a successor has started goes on.
            self.write(lambda: BootRuns().settle_egress(self.attempt), timeout=0)
            BootRuns().settle_egress(self.attempt)
        except (DatabaseError, InterfaceError) as exc:
            # The record says then what it may lack.
            log.warning("egress_not_settled", reason=type(exc).__name__)
            close_old_connections()

    def give_back(self) -> None:
        """Release the job for another worker; this try does not count.

        Raises ``LeaseLost`` when it is not ours to give: it was cancelled, say, and then the end of
        its boot run is this worker's to write.
        """
        if not BuildJob.objects.give_back(self.fence):
            raise lease_lost(self.fence)

    def end_cancelled_boot_run(self) -> None:
        """End the boot run if the job was cancelled: the work on it has stopped.

        Waits a moment for a database that is away. What fails here is done by a sweeper.
        """
        try:
            retry_database(self._end_cancelled_boot_run, timeout=LAST_SECONDS)
        except (DatabaseError, InterfaceError) as exc:
            log.warning("boot_run_not_ended", reason=type(exc).__name__)

    def _end_cancelled_boot_run(self) -> None:
        current = BuildJob.objects.get(pk=self.id)
        if current.status == BuildJob.Status.CANCELLED:
            BootRuns().end_boot_run(
                self.attempt, failed=False, code="cancelled", message=current.error_message
            )

    def drop(self) -> None:
        """Write that all work on a cancelled job has stopped."""
        try:
            BuildJob.objects.drop(self.fence)
        except (DatabaseError, InterfaceError) as exc:
            # Whoever waits for it does not wait for ever.
            log.warning("job_not_dropped", reason=type(exc).__name__)
            close_old_connections()


def publication_of(image: PublishedImage, plan_hash: str, *, reused: bool) -> Publication:
    """Return what a job publishes with an image of the registry."""
    return Publication(
        plan_hash=plan_hash,
        reused=reused,
        reference=image.reference,
        digest_reference=image.digest_reference,
        digest=image.digest,
    )


def describe(error: BaseException) -> tuple[str, str]:
    """Return code and message to store for ``error``.

    A :class:`JobError` speaks for itself. Anything else is a fault of ours: its text may hold
    argv, SQL or secrets, so it stays in the log.
    """
    if isinstance(error, JobError):
        return error.code, error.message
    return INTERNAL_ERROR, INTERNAL_MESSAGE
