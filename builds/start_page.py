"""What the admin's start page shows: what is queued, building, ready, failed, ending; who works.

Each list is short and comes from an index of what it shows, so the page costs a fixed number of
questions however much there is. Database time only.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import BooleanField, Count, ExpressionWrapper, F, Q, QuerySet
from django.db.models.functions import Now

from controlplane.work.models import Heartbeat
from runs.models import Run
from workspaces.models import BuildJob, RuntimeInstance, Sandbox, Transition, Workspace
from workspaces.status import SurfacedStatus

SHOWN = 10
COUNTED = 1_000
WORKERS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Line:
    """One workspace in a list: since when, what is said of it, and the job or run behind it."""

    workspace: Workspace
    since: datetime | None
    told: str
    job_id: uuid.UUID | None = None
    run_id: uuid.UUID | None = None
    worker_id: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The first lines of a list, and how many there are; of very many only that."""

    name: str
    lines: Sequence[Line]
    number: int
    where: str
    """The query of the changelist that shows all."""

    @property
    def counted(self) -> str:
        """Return how many there are, for people."""
        return f"{COUNTED}+" if self.number > COUNTED else str(self.number)

    @property
    def more(self) -> bool:
        """Tell whether there are more than are shown."""
        return self.number > len(self.lines)


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One worker: how it is, and what it is at."""

    worker_id: str
    hostname: str
    pid: int
    state: str
    started_at: datetime
    seen_at: datetime
    places: int
    jobs: Sequence[BuildJob] = ()
    runs: int = 0
    sessions: int = 0


def _listing(
    name: str, rows: QuerySet[Any], line: Callable[[Any], Line], where: str = ""
) -> Listing:
    return Listing(name, [line(row) for row in rows[:SHOWN]], rows[: COUNTED + 1].count(), where)


def queued() -> Listing:
    """Return the jobs that wait, longest first."""
    rows = BuildJob.objects.filter(status=BuildJob.Status.QUEUED).order_by("queued_at")

    def line(job: BuildJob) -> Line:
        tried = f"claimed before: {job.attempt_count}" if job.attempt_count else ""
        return Line(job.attempt.workspace, job.queued_at, tried, job_id=job.pk)

    return _listing(
        "Queued", rows.select_related("attempt__workspace"), line, "status__exact=queued"
    )


def building() -> Listing:
    """Return the jobs that workers are at, longest first."""
    rows = BuildJob.objects.filter(lease_expires_at__isnull=False).order_by("claimed_at")

    def line(job: BuildJob) -> Line:
        phase = "building" if job.status == BuildJob.Status.RUNNING else "launching"
        again = f", try {job.attempt_count}" if job.attempt_count > 1 else ""
        return Line(
            job.attempt.workspace,
            job.claimed_at,
            f"{phase}{again}",
            job_id=job.pk,
            worker_id=job.worker_id,
        )

    return _listing(
        "Building",
        rows.select_related("attempt__workspace"),
        line,
        "lease_expires_at__isnull=False",
    )


def ready() -> Listing:
    """Return the workspaces that can be entered, newest first."""
    rows = RuntimeInstance.objects.filter(status=RuntimeInstance.Status.RUNNING).order_by("-run_id")

    def line(runtime: RuntimeInstance) -> Line:
        sandbox = runtime.attempt.sandbox
        image = f"{sandbox.repository}:{sandbox.tag}"
        return Line(runtime.attempt.workspace, runtime.launched_at, image, run_id=runtime.run_id)

    related = ("attempt__workspace", "attempt__sandbox")
    return _listing("Ready", rows.select_related(*related), line, "status__exact=ready")


def failed() -> Listing:
    """Return the workspaces whose last start failed, newest first.

    One that was started again since, or deleted, is nobody's concern any more.
    """
    rows = Sandbox.objects.filter(
        status=SurfacedStatus.FAILED,
        workspace__latest_sandbox=F("pk"),
        workspace__deleted_at__isnull=True,
    ).order_by("-id")

    def line(sandbox: Sandbox) -> Line:
        attempt = sandbox.latest_attempt
        if attempt is None:
            return Line(sandbox.workspace, sandbox.updated_at, "")
        runtime = getattr(attempt, "runtime", None)
        ended = [row.finished_at for row in (runtime, attempt) if row and row.finished_at]
        codes = [row.error_code for row in (attempt, runtime) if row and row.error_code]
        return Line(
            sandbox.workspace,
            ended[0] if ended else sandbox.updated_at,
            codes[0] if codes else "",
            run_id=attempt.run_id,
        )

    related = ("workspace", "latest_attempt__runtime")
    where = "status__exact=failed&state=latest"
    return _listing("Failed", rows.select_related(*related), line, where)


def ending() -> Listing:
    """Return the stops and deletes that are not done, longest first, and what they wait for."""
    rows = Transition.objects.open().order_by("requested_at", "id")

    def line(transition: Transition) -> Line:
        waits = (
            f": {transition.waiting_code}. {transition.waiting_message}"
            if transition.waiting_code
            else ""
        )
        return Line(
            transition.workspace,
            transition.requested_at,
            f"{transition.kind}{waits}",
            worker_id=transition.worker_id,
        )

    return _listing("Ending", rows.select_related("workspace"), line, "finished_at__isnull=True")


def _with_silence(rows: QuerySet[Any], stale: timedelta) -> list[Any]:
    silent = ExpressionWrapper(Q(seen_at__lte=Now() - stale), output_field=BooleanField())
    return list(rows.annotate(silent=silent).order_by("started_at")[:WORKERS_SHOWN])


def _state(worker: Any) -> str:
    return "silent" if worker.silent else "draining" if worker.draining else "alive"


def build_workers(*, stale: timedelta) -> list[WorkerLine]:
    """Return the build workers, each with the jobs that it is at."""
    workers = _with_silence(Heartbeat.objects.build(), stale)
    held: dict[str, list[BuildJob]] = {worker.worker_id: [] for worker in workers}
    for job in BuildJob.objects.filter(
        lease_expires_at__isnull=False, worker_id__in=held
    ).select_related("attempt__workspace"):
        held[job.worker_id].append(job)
    return [
        WorkerLine(
            *(worker.worker_id, worker.hostname, worker.pid, _state(worker)),
            *(worker.started_at, worker.seen_at, worker.capacity),
            jobs=held[worker.worker_id],
        )
        for worker in workers
    ]


def run_workers(*, stale: timedelta) -> list[WorkerLine]:
    """Return the run workers, each with how many runs and sessions it is at."""
    workers = _with_silence(Heartbeat.objects.run(), stale)
    session = Q(mode=Run.Mode.INTERACTIVE)
    held = {
        row["worker_id"]: row
        for row in Run.objects.filter(
            lease_expires_at__isnull=False, worker_id__in=[worker.worker_id for worker in workers]
        )
        .values("worker_id")
        .annotate(runs=Count("pk", filter=~session), sessions=Count("pk", filter=session))
        .order_by()
    }
    nothing = {"runs": 0, "sessions": 0}
    return [
        WorkerLine(
            *(worker.worker_id, worker.hostname, worker.pid, _state(worker)),
            *(worker.started_at, worker.seen_at, worker.capacity),
            runs=held.get(worker.worker_id, nothing)["runs"],
            sessions=held.get(worker.worker_id, nothing)["sessions"],
        )
        for worker in workers
    ]
