"""Why a workspace is not ready: a code, a sentence, since when, and what happens next."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import OuterRef, Q, QuerySet

from controlplane.database.compiled_reads import compiled_rows
from controlplane.spelling import format_timestamp
from controlplane.work.models import Heartbeat, heartbeat_stale, serves
from workspaces.models import (
    Attempt,
    BuildJob,
    Engine,
    RuntimeInstance,
    Transition,
)
from workspaces.models.known_engines import lost_since
from workspaces.status import SurfacedStatus

QUEUE_POSITIONS_SHOWN = 1_000
ENGINE_LOST, ENGINE_DRAINING = "engine-lost", "engine-draining"
NODE_LOST = "node-lost"
"""Of a runtime whose Pod the cluster has given up, and may still have."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is not ready."""

    code: str
    message: str
    since: datetime
    next: str
    engine: str | None = None
    """The engine that is waited for."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What jobs wait for: living workers by the engine they serve, and how the engines stand."""

    workers: Mapping[str, int]
    lost: Mapping[str, datetime]
    draining: Collection[str]

    def workers_of(self, engine: str) -> int:
        """Return how many living workers could claim a job of ``engine``; "": of none yet."""
        return sum(number for name, number in self.workers.items() if serves(name, engine))


def on_engine(name: str) -> str:
    """Return what names an engine in a sentence about its workers; nothing when there is none."""
    return f" of the engine {name}" if name else ""


def surroundings_of(jobs: Collection[BuildJob]) -> Surroundings:
    """Return what these jobs wait for; asked for only when one of them does."""
    queued = [job for job in jobs if job.status == BuildJob.Status.QUEUED]
    workers = _living_workers() if queued else {}
    if not any(job.engine_name for job in queued):
        return Surroundings(workers, {}, ())
    lost = compiled_rows(_lost_engines, heartbeat_stale())
    draining = compiled_rows(_draining_engines)
    return Surroundings(
        workers,
        {name: seen or added for name, seen, added in lost},
        {name for (name,) in draining},
    )


def _living_workers() -> Counter[str]:
    return Counter(name for (name,) in compiled_rows(_workers, heartbeat_stale()))


def _workers(stale: timedelta) -> QuerySet[Heartbeat, tuple[str]]:
    alive = Heartbeat.objects.build().alive(stale=stale)
    return alive.filter(draining=False).values_list("engine_name")


def _lost_engines(stale: timedelta) -> QuerySet[Engine, tuple[str, datetime | None, datetime]]:
    lost = Engine.objects.known().lost(stale=stale)
    return lost.values_list("name", "seen_at", "added_at")


def _draining_engines() -> QuerySet[Engine, tuple[str]]:
    return Engine.objects.known().exclude(state=Engine.State.ACTIVE).values_list("name")


def reason_of(
    attempt: Attempt,
    job: BuildJob | None,
    runtime: RuntimeInstance | None,
    status: SurfacedStatus,
    transition: Transition | None,
    around: Surroundings,
) -> Reason | None:
    """Return why the workspace of an attempt is not ready; None when it is."""
    lost = _lost(job, runtime, around)
    if transition is not None:
        return _ending(transition, lost)
    if found := lost or _held_back(job, around):
        return found
    if status is SurfacedStatus.READY:
        return None
    if status is SurfacedStatus.QUEUED:
        engine = job.engine_name if job else ""
        return _waiting(attempt, job, around.workers_of(engine), on_engine(engine))
    if status is SurfacedStatus.RUNNING:
        return _working(attempt, job, runtime)
    return _ended(attempt, job, runtime, status)


def _lost(
    job: BuildJob | None, runtime: RuntimeInstance | None, around: Surroundings
) -> Reason | None:
    """Return that the engine does not answer which something waits for or runs on."""
    if runtime is not None:
        if runtime.status in RuntimeInstance.TERMINAL or runtime.lost_since is None:
            return None
        return _engine_lost(
            runtime.engine_name,
            runtime.lost_since,
            "The workspace may still be running there, so it is not started anywhere else.",
        )
    queued = job is not None and job.status == BuildJob.Status.QUEUED
    if job is not None and queued and job.engine_name in around.lost:
        return _engine_lost(
            job.engine_name,
            around.lost[job.engine_name],
            "The workspace's files are there, or the job has not been placed on another one yet.",
        )
    return None


def _engine_lost(name: str, since: datetime, what: str) -> Reason:
    return Reason(
        ENGINE_LOST,
        f"The engine {name} does not answer. {what}",
        since,
        "Everything continues when the engine answers again. If it is gone for good, an operator "
        "has to declare that (manage.py engine forget).",
        engine=name,
    )


def lost_machines(attempt_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Reason]:
    """Return, by attempt, that the machine does not answer on which its workspace runs.

    One query; what may still be going on there has no other reason.
    """
    on_lost_node = Q(status=RuntimeInstance.Status.FAILED, error_code=NODE_LOST)
    added: dict[str, Any] = {
        "lost_since": lost_since(OuterRef("engine_name"), stale=heartbeat_stale())
    }
    runtimes = (
        RuntimeInstance.objects.filter(attempt_id__in=attempt_ids)
        .annotate(**added)
        .filter(on_lost_node | Q(status__in=RuntimeInstance.LIVE, lost_since__isnull=False))
    )
    return {runtime.attempt_id: _machine_lost(runtime) for runtime in runtimes}


def _machine_lost(runtime: RuntimeInstance) -> Reason:
    if runtime.lost_since is not None and runtime.status in RuntimeInstance.LIVE:
        return _engine_lost(
            runtime.engine_name, runtime.lost_since, "What runs there may still be going on."
        )
    return Reason(
        NODE_LOST,
        runtime.error_message,
        runtime.finished_at or runtime.updated_at,
        "This ends when the cluster no longer has its Pod: when the node is back, or when an "
        "operator who knows that it is gone for good removes the Pod (kubectl delete pod --force).",
    )


def _ending(transition: Transition, lost: Reason | None) -> Reason:
    stopping = transition.kind == Transition.Kind.STOP
    waits = (
        f" Waiting ({transition.waiting_code}): {transition.waiting_message}"
        if transition.waiting_code
        else ""
    )
    if lost is not None:
        waits = f" Waiting ({ENGINE_LOST}): {lost.message}"
    detail = f" {transition.detail}" if transition.detail else ""
    return Reason(
        "stopping" if stopping else "deleting",
        f"The workspace is being {'stopped' if stopping else 'deleted'}.{detail}{waits}",
        transition.requested_at,
        "A build worker ends what runs, completes the records and removes the container"
        + (
            "; then it can be started again."
            if stopping
            else ", and the workspace's volumes; this cannot be undone."
        ),
        engine=lost.engine if lost else None,
    )


def _waiting(attempt: Attempt, job: BuildJob | None, workers: int, of_engine: str) -> Reason:
    since = job.queued_at if job else attempt.queued_at
    if workers == 0:
        return Reason(
            "no-worker",
            f"The build job is waiting, and no build worker{of_engine} is alive.",
            since,
            "It is claimed as soon as a build worker runs; start one (manage.py buildworker).",
        )
    ahead = job.jobs_ahead if job else None
    place = (
        f"{ahead} job{'' if ahead == 1 else 's'} ahead of it"
        if ahead is not None
        else f"more than {QUEUE_POSITIONS_SHOWN} jobs ahead of it"
    )
    return Reason(
        "queued",
        f"The build job is waiting for a build worker{of_engine} ({workers} alive), {place}.",
        since,
        "A build worker claims it, builds the image, publishes it and launches the workspace.",
    )


def _held_back(job: BuildJob | None, around: Surroundings) -> Reason | None:
    """Return that a queued job waits for the end of a draining."""
    if job is None or job.status != BuildJob.Status.QUEUED:
        return None
    engine_name, since = job.engine_name, job.queued_at
    if not engine_name and job.held_back:
        return Reason(
            ENGINE_DRAINING,
            "No engine takes starts: each is being drained or was declared gone.",
            since,
            "It starts when an operator undrains an engine (manage.py engine undrain) or adds "
            "one (manage.py engine add).",
        )
    if engine_name not in around.draining:
        return None
    return Reason(
        ENGINE_DRAINING,
        f"The engine {engine_name} takes no starts: it is being drained.",
        since,
        "It starts when an operator undrains it (manage.py engine undrain); it does not start on "
        "another engine while its files are on this one.",
        engine=engine_name,
    )


def _working(attempt: Attempt, job: BuildJob | None, runtime: RuntimeInstance | None) -> Reason:
    since = (job.claimed_at if job else None) or attempt.started_at or attempt.created_at
    if job is not None and job.status == BuildJob.Status.QUEUED and job.lane == BuildJob.Lane.BUILD:
        return Reason(
            "waiting-for-build-slot",
            "An image has to be built, and all build slots of the workers"
            f"{on_engine(job.engine_name)} are in use.",
            since,
            "It is built when another build ends, first for owners with the fewest builds under "
            "way. Raise WORKSPACE_BUILD_QUEUE_PREFETCH or start another build worker if that is "
            "too slow.",
        )
    if job is None or job.lease_expires_at is None:
        return Reason(
            "settling",
            "The job is done; its result is being written.",
            since,
            "A build worker's sweeper settles it within seconds.",
        )
    claim = (
        f"claimed by {job.worker_id} (try {job.attempt_count} of {job.max_attempts}), "
        f"lease until {format_timestamp(job.lease_expires_at)}"
    )
    if job.status == BuildJob.Status.SUCCEEDED and runtime is not None:
        return Reason(
            "launching",
            f"The image is published and the workspace is being launched; {claim}.",
            runtime.created_at,
            "It is ready when its setup and startup steps have succeeded.",
        )
    return Reason(
        "building",
        f"The image is being built and published; {claim}.",
        since,
        "The workspace is launched from the published digest.",
    )


def _ended(
    attempt: Attempt,
    job: BuildJob | None,
    runtime: RuntimeInstance | None,
    status: SurfacedStatus,
) -> Reason:
    rows: Sequence[Any] = [row for row in (job, runtime, attempt) if row is not None]
    told = next((row for row in rows if row.error_message), attempt)
    since = getattr(told, "finished_at", None) or attempt.finished_at or attempt.updated_at
    code = getattr(told, "error_code", "") or status.value
    return Reason(
        code,
        told.error_message or f"The workspace is {status.value}.",
        since,
        "Nothing more happens automatically; start another attempt.",
    )
