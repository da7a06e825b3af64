"""How attempts stand, for people: status, reason, image, runtime, error.

"Why is it not ready?" is answered by ``reason``: a code, a sentence, since when, and what happens
next. A page of any length takes a constant number of queries.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Exists, OuterRef, Q, Subquery
from django.db.models.fields.json import KT

from controlplane.errors import Conflict
from controlplane.spelling import format_timestamp
from controlplane.work.models import Heartbeat
from workspaces.models import (
    Attempt,
    BuildJob,
    Engine,
    RuntimeInstance,
    Transition,
    Workspace,
)
from workspaces.models.known_engines import lost_since
from workspaces.status import SurfacedStatus, surfaced_status

QUEUE_POSITIONS_SHOWN = 1_000
ENGINE_LOST, ENGINE_DRAINING = "engine-lost", "engine-draining"


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
class AttemptState:
    """An attempt with everything that reads show of it."""

    attempt: Attempt
    job: BuildJob | None
    runtime: RuntimeInstance | None
    status: SurfacedStatus
    reason: Reason | None

    @property
    def engine_name(self) -> str:
        """The engine that it runs on or was placed on; empty while there is none."""
        return (self.runtime.engine_name if self.runtime else "") or (
            self.job.engine_name if self.job else ""
        )

    @property
    def is_pinned(self) -> bool:
        """Whether it can start on no other engine: its volumes are on this one."""
        runtime = self.runtime
        return bool(runtime and runtime.launched_at and runtime.persistence == "persistent")

    def to_members(self) -> dict[str, Any]:
        """Return the members that reads of attempts, sandboxes and workspaces share."""
        attempt, job, runtime = self.attempt, self.job, self.runtime
        rows: list[Any] = [row for row in (attempt, job, runtime) if row is not None]
        return {
            "status": self.status.value,
            "reason": self.reason,
            "runtime": _runtime_members(attempt, runtime) if runtime else None,
            "published_image": {
                "reference": job.published_reference,
                "digest_reference": job.published_digest_reference,
                "digest": job.published_digest,
            }
            if job is not None and job.published_digest
            else None,
            "error": _error_members(attempt, job, runtime, self.status),
            "created_at": attempt.created_at,
            "updated_at": max(row.updated_at for row in rows),
            "started_at": attempt.started_at or (job.started_at if job else None),
            "finished_at": attempt.finished_at or (job.finished_at if job else None),
        }


def _runtime_members(attempt: Attempt, runtime: RuntimeInstance) -> dict[str, Any] | None:
    if not (runtime.adapter and runtime.resource_id and runtime.reference):
        return None
    return {
        "adapter": runtime.adapter,
        "resource_id": runtime.resource_id,
        "reference": runtime.reference,
        "status": runtime.status,
        "endpoint": ssh_endpoint(attempt.workspace_id),
    }


def ssh_endpoint(workspace_id: uuid.UUID) -> str:
    """Return where people enter the workspace: ``ssh://ws-<workspaceId>@<host>:<port>``."""
    host = settings.SVC_SSH_HOST
    shown = f"[{host}]" if ":" in host else host
    prefix = settings.SSH_GATEWAY_WORKSPACE_USERNAME_PREFIX
    return f"ssh://{prefix}-{workspace_id}@{shown}:{settings.SVC_SSH_PORT}"


def _error_members(
    attempt: Attempt,
    job: BuildJob | None,
    runtime: RuntimeInstance | None,
    status: SurfacedStatus,
) -> dict[str, Any] | None:
    if status is not SurfacedStatus.FAILED:
        return None
    for row in (job, runtime, attempt):
        if row is not None and row.status == "failed" and row.error_message:
            return {"message": row.error_message, "code": row.error_code or None}
    return None


# Before the first build worker has written its own there is no engine.
_HELD_BACK: dict[str, Any] = {
    "held_back": Q(Exists(Engine.objects.all()))
    & ~Q(Exists(Engine.objects.filter(state=Engine.State.ACTIVE)))
}


def attempt_states(attempts: Iterable[Attempt]) -> dict[uuid.UUID, AttemptState]:
    """Return how each attempt stands, by its id."""
    wanted = list(attempts)
    ids = [attempt.pk for attempt in wanted]
    jobs = {
        job.attempt_id: job
        for job in BuildJob.objects.filter(attempt_id__in=ids)
        .with_jobs_ahead(at_most=QUEUE_POSITIONS_SHOWN)
        .annotate(**_HELD_BACK)
        .order_by("attempt_id", "id")
    }
    # No join: it would have PostgreSQL read all attempts.
    blueprint = Attempt.objects.filter(pk=OuterRef("attempt_id"))
    persistence = Subquery(blueprint.values(kept=KT("spec__runtime__persistence")))
    added: dict[str, Any] = {
        "lost_since": lost_since(OuterRef("engine_name"), stale=_stale()),
        "persistence": persistence,
    }
    runtimes = {
        runtime.attempt_id: runtime
        for runtime in RuntimeInstance.objects.filter(attempt_id__in=ids).annotate(**added)
    }
    workers = _living_workers(jobs.values())
    engines = _engines_of(jobs.values())
    transitions = _open_transitions(ids)
    found = {}
    for attempt in wanted:
        job, runtime = jobs.get(attempt.pk), runtimes.get(attempt.pk)
        status = surfaced_status(
            attempt=attempt.status,
            job=job.status if job else None,
            runtime=runtime.status if runtime else None,
        )
        transition = transitions.get(attempt.pk)
        lost = _lost(job, runtime, engines)
        reason = (
            _ending(transition, lost)
            if transition
            else lost or _held_back(job, engines) or _reason(attempt, job, runtime, status, workers)
        )
        found[attempt.pk] = AttemptState(attempt, job, runtime, status, reason)
    return found


def _open_transitions(attempt_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Transition]:
    """Return what is still to be done to the workspaces of which these attempts are the latest."""
    latest = "workspace__latest_sandbox__latest_attempt_id"
    found = Transition.objects.open().filter(**{f"{latest}__in": attempt_ids})
    members = ("kind", "requested_at", "waiting_code", "waiting_message", "detail")
    return {
        attempt_id: Transition(**dict(zip(members, values, strict=True)))
        for attempt_id, *values in found.values_list(latest, *members)
    }


@dataclass(frozen=True, slots=True)
class _Engines:
    """How the engines stand that jobs wait for."""

    lost: Mapping[str, datetime]
    draining: Collection[str]


def _engines_of(jobs: Iterable[BuildJob]) -> _Engines:
    """Return how the engines stand; asked for only when one of these waits for its engine."""
    if not any(job.status == BuildJob.Status.QUEUED and job.engine_name for job in jobs):
        return _Engines({}, ())
    known = Engine.objects.known()
    lost = known.lost(stale=_stale()).values_list("name", "seen_at", "added_at")
    draining = known.exclude(state=Engine.State.ACTIVE).values_list("name", flat=True)
    return _Engines({name: seen or added for name, seen, added in lost}, set(draining))


def _stale() -> timedelta:
    return timedelta(milliseconds=settings.WORKER_HEARTBEAT_STALE_MS)


def _lost(
    job: BuildJob | None, runtime: RuntimeInstance | None, engines: _Engines
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
    if job is not None and queued and job.engine_name in engines.lost:
        return _engine_lost(
            job.engine_name,
            engines.lost[job.engine_name],
            "The workspace's files are there, or the job has not been placed on another one yet.",
        )
    return None


def _engine_lost(name: str, since: datetime, what: str) -> Reason:
    return Reason(
        ENGINE_LOST,
        f"The engine {name} does not answer. {what}",
        since,
        "All goes on when the engine answers again. An operator who knows that it is gone for good "
        "says so (manage.py engine forget).",
        engine=name,
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


def require_ready(attempt: Attempt | None) -> tuple[Attempt, RuntimeInstance]:
    """Return the attempt with its runtime when the workspace can be entered.

    Raises ``Conflict`` (``workspace-not-ready``) otherwise, with ``reason`` in the answer.
    """
    if attempt is None:
        raise Conflict("No sandbox was started in the workspace.", code="workspace-not-ready")
    state = attempt_states([attempt])[attempt.pk]
    if state.status is SurfacedStatus.READY and state.runtime is not None:
        return attempt, state.runtime
    error = Conflict("The workspace is not ready.", code="workspace-not-ready")
    if state.reason is not None:
        reason = state.reason
        error = Conflict(
            f"The workspace is not ready: {reason.message}", code="workspace-not-ready"
        )
        error.members["reason"] = {
            "code": reason.code,
            "message": reason.message,
            "since": format_timestamp(reason.since),
            "next": reason.next,
            **({"engine": reason.engine} if reason.engine else {}),
        }
    raise error


def find_ready(workspace_id: uuid.UUID, *, owner_user_id: str | None) -> Attempt | None:
    """Return the latest attempt of a workspace that can be entered, with its workspace.

    One statement, for those who wait. None: `get_workspace` or :func:`require_ready` says why. Of
    the workspace only id and owner are loaded.
    """
    given = {"workspace": workspace_id, "owner": owner_user_id}
    attempt = next(iter(Attempt.objects.raw(_FIND_READY, given)), None)
    if attempt is None:
        return None
    told = vars(attempt)
    owner, job, runtime = (told.pop(name) for name in ("owner", "job_status", "runtime_status"))
    if surfaced_status(attempt=attempt.status, job=job, runtime=runtime) != SurfacedStatus.READY:
        return None
    known = (attempt.workspace_id, owner)
    attempt.workspace = Workspace.from_db(connection.alias, ["id", "owner_user_id"], known)
    return attempt


_FIND_READY = """
    SELECT attempt.*, workspace.owner_user_id AS owner,
        (SELECT status FROM workspaces_buildjob AS job WHERE job.attempt_id = attempt.id
            ORDER BY job.id DESC LIMIT 1) AS job_status,
        (SELECT status FROM workspaces_runtimeinstance AS runtime
            WHERE runtime.attempt_id = attempt.id LIMIT 1) AS runtime_status
    FROM workspaces_workspace AS workspace
        JOIN workspaces_attempt AS attempt ON attempt.workspace_id = workspace.id
    WHERE workspace.id = %(workspace)s
        AND (%(owner)s::text IS NULL OR workspace.owner_user_id = %(owner)s)
    ORDER BY attempt.id DESC LIMIT 1
"""


def _living_workers(jobs: Iterable[BuildJob]) -> int:
    """Count the workers that could claim a job; they are asked for only when one of these waits."""
    if not any(job.status == BuildJob.Status.QUEUED for job in jobs):
        return 0
    stale = timedelta(milliseconds=settings.WORKER_HEARTBEAT_STALE_MS)
    return Heartbeat.objects.build().alive(stale=stale).filter(draining=False).count()


def _reason(
    attempt: Attempt,
    job: BuildJob | None,
    runtime: RuntimeInstance | None,
    status: SurfacedStatus,
    workers: int,
) -> Reason | None:
    if status is SurfacedStatus.READY:
        return None
    if status is SurfacedStatus.QUEUED:
        return _waiting(attempt, job, workers)
    if status is SurfacedStatus.RUNNING:
        return _working(attempt, job, runtime)
    return _ended(attempt, job, runtime, status)


def _waiting(attempt: Attempt, job: BuildJob | None, workers: int) -> Reason:
    since = job.queued_at if job else attempt.queued_at
    if workers == 0:
        return Reason(
            "no-worker",
            "The build job is waiting, and no build worker is alive.",
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
        f"The build job is waiting for one of {workers} build workers, {place}.",
        since,
        "A build worker claims it, builds the image, publishes it and launches the workspace.",
    )


def _held_back(job: BuildJob | None, engines: _Engines) -> Reason | None:
    """Return that a queued job waits for the end of a draining."""
    if job is None or job.status != BuildJob.Status.QUEUED:
        return None
    engine_name, since = job.engine_name, job.queued_at
    if not engine_name and job.held_back:
        return Reason(
            ENGINE_DRAINING,
            "No engine takes starts: each is being drained or was declared gone.",
            since,
            "It starts when an operator ends a draining (manage.py engine undrain) or adds an "
            "engine (manage.py engine add).",
        )
    if engine_name not in engines.draining:
        return None
    return Reason(
        ENGINE_DRAINING,
        f"The engine {engine_name} takes no starts: it is being drained.",
        since,
        "It starts when an operator ends that (manage.py engine undrain); it does not start on "
        "another engine while its files are on this one.",
        engine=engine_name,
    )


def _working(attempt: Attempt, job: BuildJob | None, runtime: RuntimeInstance | None) -> Reason:
    since = (job.claimed_at if job else None) or attempt.started_at or attempt.created_at
    if job is not None and job.status == BuildJob.Status.QUEUED and job.lane == BuildJob.Lane.BUILD:
        return Reason(
            "waiting-for-build-slot",
            "An image has to be built, and all build slots of the workers are in use.",
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
