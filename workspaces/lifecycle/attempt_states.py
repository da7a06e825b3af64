"""How attempts stand: status, reason, image, runtime, error.

A page of any length takes a constant number of queries.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from django.conf import settings
from django.db import connection
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.fields.json import KT

from controlplane.database.columns import with_columns
from controlplane.database.compiled_reads import compiled_rows
from controlplane.errors import Conflict
from controlplane.spelling import format_timestamp
from controlplane.work.models import heartbeat_stale
from workspaces.lifecycle.reasons import (
    QUEUE_POSITIONS_SHOWN,
    Reason,
    reason_of,
    surroundings_of,
)
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

Row = TypeVar("Row")


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
    jobs = {job.attempt_id: job for job in _rows(_jobs, ids, QUEUE_POSITIONS_SHOWN)}
    found_runtimes = _rows(_runtimes, ids, heartbeat_stale())
    runtimes = {runtime.attempt_id: runtime for runtime in found_runtimes}
    around = surroundings_of(jobs.values())
    transitions = _open_transitions(ids)
    found = {}
    for attempt in wanted:
        job, runtime = jobs.get(attempt.pk), runtimes.get(attempt.pk)
        status = surfaced_status(
            attempt=attempt.status,
            job=job.status if job else None,
            runtime=runtime.status if runtime else None,
        )
        reason = reason_of(attempt, job, runtime, status, transitions.get(attempt.pk), around)
        found[attempt.pk] = AttemptState(attempt, job, runtime, status, reason)
    return found


def _rows(
    rows: Callable[..., QuerySet[Any, Row]], ids: Sequence[uuid.UUID], *values: Any
) -> Iterable[Row]:
    """Return the rows of these attempts; of a single one, which is what is polled, at less cost."""
    if len(ids) == 1:
        return compiled_rows(rows, *values, *ids)
    return rows(*values, *ids)


def _jobs(places: int, *ids: uuid.UUID) -> QuerySet[BuildJob]:
    return (
        BuildJob.objects.filter(attempt_id__in=ids)
        .with_jobs_ahead(at_most=places)
        .annotate(**_HELD_BACK)
        .order_by("attempt_id", "id")
    )


def _runtimes(stale: timedelta, *ids: uuid.UUID) -> QuerySet[RuntimeInstance]:
    # No join: it would have PostgreSQL read all attempts.
    blueprint = Attempt.objects.filter(pk=OuterRef("attempt_id"))
    added: dict[str, Any] = {
        "lost_since": lost_since(OuterRef("engine_name"), stale=stale),
        "persistence": Subquery(blueprint.values(kept=KT("spec__runtime__persistence"))),
    }
    return RuntimeInstance.objects.filter(attempt_id__in=ids).annotate(**added)


_OF_TRANSITION = ("kind", "requested_at", "waiting_code", "waiting_message", "detail")


def _transitions(*ids: uuid.UUID) -> QuerySet[Transition, tuple[Any, ...]]:
    latest = "workspace__latest_sandbox__latest_attempt_id"
    found = Transition.objects.open().filter(**{f"{latest}__in": ids})
    return found.values_list(latest, *_OF_TRANSITION)


def _open_transitions(attempt_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Transition]:
    """Return what is still to be done to the workspaces of which these attempts are the latest."""
    return {
        attempt_id: Transition(**dict(zip(_OF_TRANSITION, values, strict=True)))
        for attempt_id, *values in _rows(_transitions, attempt_ids)
    }


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


_FIND_READY = with_columns(
    """
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
""",
    attempt=Attempt,
)
