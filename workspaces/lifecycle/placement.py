"""Which engine a job goes to, where there are several.

A job is placed before it is claimed, and may be placed anew until its image is published: from then
on there may be a container, and the job is of that engine (``BuildJobQuerySet.of_engine``). Placed
are all jobs that wait, at once and in a constant number of statements.

* A persistent workspace goes where its volumes are, whatever the state of that engine.
* So does one whose last container may still exist: nobody has seen it ended.
* Any other goes to an engine that answers and is not drained: to the one with the most memory not
  yet promised to workspaces, those of the warm pool included, or to one with an image of the same
  repository that has at least half as much. Where none has room for it, the one with the most still
  takes it, as one machine would.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models import BigIntegerField, Case, F, Q, QuerySet, Sum, Value, When
from django.db.models.expressions import CombinedExpression
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce, Now

from controlplane.work.notifications import announce
from workspaces.models import Attempt, BuildJob, Engine, RuntimeInstance, WarmMember
from workspaces.models.known_engines import CHANNEL

log = structlog.get_logger(__name__)

AT_ONCE = 1000
"""How many jobs one call places."""
UNSEEN = ("adapter-unavailable", "attempts-exhausted", "internal-error")
"""Codes of launches that failed without anybody knowing whether there is a container."""


@dataclass(slots=True)
class Room:
    """An engine while jobs are placed: how much memory is left, and for whom it is the first."""

    name: str
    free: int
    repositories: frozenset[str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job to be placed."""

    job_id: uuid.UUID
    engine_name: str
    repository: str
    memory: int
    bound_to: str
    """The engine that it has to go to; empty: to any."""


def several_engines() -> bool:
    """Whether there is anything to choose: one engine alone gets all jobs without being asked."""
    return Engine.objects.known()[:2].count() > 1


def place_waiting(*, stale: timedelta, at_most: int = AT_ONCE) -> int:
    """Place the jobs that wait for an engine; return how many were placed, or placed anew.

    Of several callers one places at a time. The workers are told of it (``CHANNEL``).
    """
    with transaction.atomic():
        # In this order everywhere, so that two callers wait for each other and for nothing else.
        engines = list(Engine.objects.known().order_by("name").select_for_update(no_key=True))
        usable = set(
            Engine.objects.answering(stale=stale)
            .filter(state=Engine.State.ACTIVE)
            .values_list("name", flat=True)
        )
        jobs = _unplaced(usable, at_most)
        if not jobs:
            return 0
        promised, waiting = _promised(), _kept_waiting()
        rooms = [
            Room(
                one.name,
                one.memory_bytes - promised.get(one.name, 0) - waiting.get(one.engine_id, 0),
                frozenset(one.images),
            )
            for one in engines
            if one.name in usable
        ]
        chosen = choose(_waiting(jobs, {one.name for one in engines}), rooms)
        if chosen:
            _write(chosen)
            announce(CHANNEL)
            log.info("jobs_placed", jobs=len(chosen), engines=sorted(set(chosen.values())))
    return len(chosen)


def choose(waiting: Iterable[Waiting], rooms: Collection[Room]) -> dict[uuid.UUID, str]:
    """Return for each job that moves the engine that it goes to, the longest-waiting one first.

    The memory of each counts for those after it.
    """
    by_name = {room.name: room for room in rooms}
    chosen: dict[uuid.UUID, str] = {}
    for job in waiting:
        room = by_name.get(job.bound_to) if job.bound_to else _best(job, rooms)
        name = job.bound_to or (room.name if room else job.engine_name)
        if room is not None:
            room.free -= job.memory
        if name != job.engine_name:
            chosen[job.job_id] = name
    return chosen


def _best(job: Waiting, rooms: Collection[Room]) -> Room | None:
    most = max(rooms, key=lambda room: room.free, default=None)
    if most is None:
        return None
    with_image = [
        room
        for room in rooms
        if job.repository in room.repositories and room.free >= max(job.memory, most.free // 2)
    ]
    return max(with_image, key=lambda room: room.free, default=most)


_PERSISTENCE = "attempt__spec__runtime__persistence"


def _memory(path: str) -> CombinedExpression:
    """Return the bytes that a workspace may use, by the blueprint at ``path``."""
    named = KeyTextTransform(
        "memoryMb", KeyTextTransform("resources", KeyTextTransform("runtime", path))
    )
    default = Value(settings.WORKSPACE_MEMORY_MB, output_field=BigIntegerField())
    return Coalesce(Cast(named, BigIntegerField()), default) * Value(1024**2)


_UNPLACED_FIRST = Case(When(engine_name="", then=0), default=1)


def _unplaced(usable: Collection[str], at_most: int) -> list[dict[str, Any]]:
    """Return the jobs of no engine, or of one that takes nothing, and lock them.

    Of those that are at work only the ones that nobody is at: their worker has died, and its writes
    are fenced off before there is a container.
    """
    queued = Q(status=BuildJob.Status.QUEUED)
    left = Q(status=BuildJob.Status.RUNNING, lease_expires_at__lte=Now())
    rows: QuerySet[BuildJob, dict[str, Any]] = (
        BuildJob.objects.filter(queued | left)
        .exclude(engine_name__in=usable)
        .annotate(memory=_memory("attempt__spec"), workspace_id=F("attempt__workspace_id"))
        # Those that wait for their own engine must not keep others from being looked at.
        .order_by(_UNPLACED_FIRST, "queued_at", "pk")
        .select_for_update(skip_locked=True, of=("self",))
        .values("pk", "engine_name", "repository", "memory", "workspace_id", _PERSISTENCE)
    )
    return list(rows[:at_most])


def _promised() -> Mapping[str, int]:
    """Return by engine how much memory the workspaces may use that are placed there."""
    # Each by its own partial index: one condition over both tables reads all there ever was.
    coming = Attempt.objects.filter(status__in=[Attempt.Status.QUEUED, Attempt.Status.RUNNING])
    live = RuntimeInstance.objects.filter(status__in=RuntimeInstance.LIVE)
    alive = coming.values("pk").union(live.values("attempt_id"))
    placed = BuildJob.objects.filter(attempt__in=alive).exclude(engine_name="")
    total = Sum(_memory("attempt__spec"), output_field=BigIntegerField())
    by_engine = placed.order_by().values("engine_name").annotate(total=total)
    return dict(by_engine.values_list("engine_name", "total"))


def _kept_waiting() -> Mapping[str, int]:
    """Return by engine, as that calls itself, how much memory containers may use that wait there.

    One that a run has claimed counts with its job.
    """
    members = WarmMember.objects.exclude(status=WarmMember.Status.CLAIMED)
    bytes_each = Cast(KeyTextTransform("memory_mb", "plan__shape"), BigIntegerField())
    total = Sum(bytes_each * Value(1024**2), output_field=BigIntegerField())
    by_engine = members.order_by().values("engine_id").annotate(total=total)
    return {
        engine_id: total or 0 for engine_id, total in by_engine.values_list("engine_id", "total")
    }


def _waiting(jobs: Iterable[Mapping[str, Any]], engines: Collection[str]) -> list[Waiting]:
    jobs = list(jobs)
    ids = {job["workspace_id"] for job in jobs}
    volumes = _volumes_of(ids, engines)
    unseen = _unseen_of(ids, engines)
    return [
        Waiting(
            job_id=job["pk"],
            engine_name=job["engine_name"],
            repository=job["repository"],
            memory=job["memory"],
            bound_to=(
                (volumes.get(job["workspace_id"], "") if job[_PERSISTENCE] == "persistent" else "")
                or unseen.get(job["workspace_id"], "")
            ),
        )
        for job in jobs
    ]


def _runtimes(ids: Collection[uuid.UUID], engines: Collection[str]) -> QuerySet[RuntimeInstance]:
    """Return the latest runtime of each workspace that was placed on an engine that is known."""
    rows = RuntimeInstance.objects.filter(attempt__workspace_id__in=ids, engine_name__in=engines)
    return rows.order_by("attempt__workspace_id", "-created_at").distinct("attempt__workspace_id")


def _volumes_of(ids: Collection[uuid.UUID], engines: Collection[str]) -> Mapping[uuid.UUID, str]:
    """Return the engines with volumes of these workspaces that were in use last."""
    ready = _runtimes(ids, engines).filter(
        launched_at__isnull=False, attempt__spec__runtime__persistence="persistent"
    )
    return dict(ready.values_list("attempt__workspace_id", "engine_name"))


def _unseen_of(ids: Collection[uuid.UUID], engines: Collection[str]) -> Mapping[uuid.UUID, str]:
    """Return the engines where the last container of these workspaces may still be."""
    rows = _runtimes(ids, engines).values_list(
        "attempt__workspace_id", "engine_name", "status", "error_code", "launched_at"
    )
    return {
        workspace_id: name
        for workspace_id, name, status, code, launched_at in rows
        if status in RuntimeInstance.LIVE or (code in UNSEEN and launched_at is None)
    }


def _write(chosen: Mapping[uuid.UUID, str]) -> None:
    """Place the jobs; a worker that wakes up after its lease ran out holds none of them any more.

    A job that was at work is queued again: its next worker begins anew, on its own engine.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workspaces_buildjob AS job"
            " SET engine_name = given.name, status = 'queued', worker_id = '',"
            " lease_expires_at = NULL, updated_at = statement_timestamp()"
            " FROM unnest(%s::uuid[], %s::text[]) AS given(id, name) WHERE job.id = given.id",
            [list(chosen), list(chosen.values())],
        )
