"""Engines that workspaces run on, and declaring one of them gone for good.

Only a worker of an engine can say how the workspaces there are, so while there is none, everything
of it waits: it may come back. That it will not is something that only an operator knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import Count, Q

from controlplane.errors import ControlPlaneError
from controlplane.work.models import Heartbeat
from controlplane.work.notifications import announce
from workspaces import services as workspaces
from workspaces.models import ENGINE_GONE, BuildJob, RuntimeInstance, Transition, WarmMember
from workspaces.models import Engine as KnownEngine
from workspaces.models.known_engines import CHANNEL, LOCAL_ENGINE

log = structlog.get_logger(__name__)

MESSAGE = "The engine that the workspace ran on is gone, and what was only there with it."
AT_ONCE = 200
"""How many runtimes end in one transaction."""
_RUNTIME = "workspace__latest_sandbox__latest_attempt__runtime"
_PRESENT = (RuntimeInstance.Status.RUNNING, RuntimeInstance.Status.STOPPING)


class EngineLivesError(ControlPlaneError):
    """A worker that lives is of the engine, or may be: its engine has never answered it."""


class UnknownEngineError(ControlPlaneError):
    """No row names such an engine."""


@dataclass(slots=True)
class Engine:
    """What the rows say of one engine; ``seen_at`` is when a worker of it was last heard.

    None: no build worker of it is known any more, because it has ended in order, or long ago.
    """

    engine_id: str
    running: int = 0
    stopping: int = 0
    transitions: int = 0
    seen_at: datetime | None = None
    workers: list[str] = field(default_factory=list)
    """The build workers that live and are of it."""


def engines(*, stale: timedelta) -> list[Engine]:
    """Return the engines that something runs on or a worker is of, the busiest first."""
    found: dict[str, Engine] = {}

    def of(engine_id: str) -> Engine:
        return found.setdefault(engine_id, Engine(engine_id))

    running = Count("pk", filter=Q(status=RuntimeInstance.Status.RUNNING))
    stopping = Count("pk", filter=Q(status=RuntimeInstance.Status.STOPPING))
    runtimes = RuntimeInstance.objects.filter(status__in=_PRESENT).exclude(engine_id="")
    counted = runtimes.values("engine_id").annotate(running=running, stopping=stopping)
    for engine_id, *numbers in counted.values_list("engine_id", "running", "stopping"):
        of(engine_id).running, of(engine_id).stopping = numbers
    transitions = Transition.objects.open().filter(**{f"{_RUNTIME}__status__in": _PRESENT})
    waiting = transitions.exclude(**{f"{_RUNTIME}__engine_id": ""}).order_by()
    per_engine = waiting.values(f"{_RUNTIME}__engine_id").annotate(number=Count("pk"))
    for engine_id, number in per_engine.values_list(f"{_RUNTIME}__engine_id", "number"):
        of(engine_id).transitions = number
    alive = set(Heartbeat.objects.build().alive(stale=stale).values_list("pk", flat=True))
    for worker in Heartbeat.objects.build().exclude(engine_id="").order_by("seen_at"):
        engine = of(worker.engine_id)
        engine.seen_at = worker.seen_at
        if worker.pk in alive:
            engine.workers.append(worker.pk)
    return sorted(found.values(), key=lambda one: (-one.running - one.stopping, one.engine_id))


def look_at(engine_id: str, *, stale: timedelta) -> Engine:
    """Return what the rows say of one engine; raise ``UnknownEngineError`` when none names it."""
    for engine in engines(stale=stale):
        if engine.engine_id == engine_id:
            return engine
    if engine_id and RuntimeInstance.objects.filter(engine_id=engine_id).exists():
        return Engine(engine_id)
    raise UnknownEngineError(f"No workspace has ever run on an engine {engine_id!r}.")


def require_gone(engine_id: str, *, stale: timedelta) -> None:
    """Raise ``EngineLivesError`` when a worker that lives is of the engine, or may be.

    There is no way around that: an engine that is gone has no workers, and a worker that has lost
    its engine can be stopped.
    """
    alive = Heartbeat.objects.build().alive(stale=stale).order_by("pk")
    of_it = list(alive.filter(engine_id=engine_id).values_list("pk", flat=True))
    if of_it:
        raise EngineLivesError(
            f"The engine has a live build worker: {_listed(of_it)}. If the engine is gone anyway, "
            "stop the worker, or wait until it has found its new engine."
        )
    recording = list(
        Heartbeat.objects.run()
        .alive(stale=stale)
        .filter(engine_id=engine_id)
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    if recording:
        raise EngineLivesError(
            f"The engine has a live run worker: {_listed(recording)}. If the engine is gone "
            "anyway, "
            "stop the worker, or wait until it has found its new engine."
        )
    unknown = list(alive.filter(engine_id="").values_list("pk", flat=True))
    if unknown:
        raise EngineLivesError(
            f"It is not known yet which engine this build worker uses: {_listed(unknown)}. "
            "Wait until its engine answers, or stop it."
        )


def _listed(worker_ids: Sequence[str]) -> str:
    more = len(worker_ids) - 5
    return ", ".join(worker_ids[:5]) + (f" and {more} more" if more > 0 else "")


def forget_engine(engine_id: str, *, by: str, stale: timedelta) -> int:
    """Declare an engine gone for good, and return how many runtimes have ended with it.

    What counts as running or stopping there becomes ``failed`` (``engine-gone``); then whoever
    looks after transitions and records no longer waits for that engine. May be repeated,
    also after a crash on the way. Containers of an engine that comes back nevertheless are ended
    by its reconciler, which keeps their files as those of any other that ended.

    Raises ``UnknownEngineError`` and ``EngineLivesError``; then nothing has changed.
    """
    engine = look_at(engine_id, stale=stale)
    require_gone(engine_id, stale=stale)
    named = _one_of_several(engine_id)
    if named is not None:
        return forget_named(named, by=by, stale=stale)
    ended = _end_all(Q(engine_id=engine_id))
    WarmMember.objects.filter(engine_id=engine_id).delete()
    log.warning(
        "engine_forgotten",
        engine_id=engine_id,
        by=by,
        runtimes=ended,
        transitions=engine.transitions,
    )
    return ended


def _one_of_several(engine_id: str) -> str | None:
    """Return the name of the engine where there are others: what is placed there has to move."""
    known = KnownEngine.objects.known()
    name = known.filter(engine_id=engine_id).values_list("name", flat=True).first()
    return name if name is not None and known.exclude(pk=name).exists() else None


def _end_all(there: Q) -> int:
    """Write that what counts as running or stopping there is gone; return how many that were."""
    present = RuntimeInstance.objects.filter(there, status__in=_PRESENT).order_by("run_id")
    ended = 0
    while batch := list(present.values_list("run_id", flat=True)[:AT_ONCE]):
        with transaction.atomic():
            ended += workspaces.end_runtimes(
                batch,
                status=RuntimeInstance.Status.FAILED,
                code=ENGINE_GONE,
                message=MESSAGE,
                stopping=True,
            )
    return ended


# ------------------------------------------------------------ by name


class EngineRefusedError(ControlPlaneError):
    """The engine cannot be added, drained or forgotten as asked; the text says why."""


def known_engine(name: str) -> KnownEngine:
    """Return an engine by its name; raises ``UnknownEngineError``."""
    engine = KnownEngine.objects.filter(pk=name).first()
    if engine is None:
        raise UnknownEngineError(f"No engine is called {name!r}; manage.py engine list shows all.")
    return engine


def replace_access(name: str, *, url: str, certificates: bytes | None, engine_id: str) -> None:
    """Give an engine another address or other certificates; it has to be the same one.

    Raises ``UnknownEngineError`` and ``EngineRefusedError``.
    """
    engine = known_engine(name)
    if engine.engine_id and engine.engine_id != engine_id:
        raise EngineRefusedError(f"Another engine than {name} answers there; nothing was changed.")
    present = KnownEngine.objects.known().filter(pk=name)
    if not present.update(url=url, certificates=certificates, engine_id=engine_id):
        raise EngineRefusedError(f"The engine {name} was declared gone; add it again.")
    log.info("engine_access_replaced", engine=name)


def add_engine(name: str, *, url: str, certificates: bytes | None, engine_id: str) -> KnownEngine:
    """Add an engine, or one again that was declared gone; raises ``EngineRefusedError``.

    ``engine_id`` is what it calls itself: one engine under two names would be counted twice.
    """
    with transaction.atomic():
        # The one that there was before anybody named engines is among them.
        local, _ = KnownEngine.objects.get_or_create(name=LOCAL_ENGINE)
        if not KnownEngine.objects.exclude(pk=LOCAL_ENGINE).exists():
            _adopt(local)
        present = KnownEngine.objects.known().select_for_update()
        if present.filter(pk=name).exists():
            raise EngineRefusedError(f"There is an engine {name} already.")
        twin = present.filter(engine_id=engine_id).values_list("name", flat=True).first()
        if twin is not None:
            raise EngineRefusedError(
                f"This engine is known already: it is called {twin}. Where it is another machine "
                "that was copied from that one, remove /etc/docker/key.json and the file engine-id "
                "in its data folder, and restart it."
            )
        engine, _ = KnownEngine.objects.update_or_create(
            name=name,
            defaults={
                "url": url,
                "certificates": certificates,
                "engine_id": engine_id,
                "state": KnownEngine.State.ACTIVE,
                "seen_at": None,
            },
        )
        announce(CHANNEL)
    log.info("engine_added", engine=name)
    return engine


def _adopt(only: KnownEngine) -> None:
    """Name the only engine in what workers of an earlier release have written without a name.

    Another engine's worker would take it for a job, or a workspace without volumes, of none.
    """
    jobs = BuildJob.objects.filter(engine_name="", lease_expires_at__isnull=False)
    jobs.update(engine_name=only.name)
    pending = Q(status=RuntimeInstance.Status.PENDING)
    there = Q(engine_id=only.engine_id) & ~Q(engine_id="")
    RuntimeInstance.objects.filter(pending | there, engine_name="").update(engine_name=only.name)


def drain_engine(name: str, *, draining: bool) -> None:
    """Have an engine take nothing new, or take starts again.

    What runs there goes on until it is stopped; what waits and is bound to no engine is placed on
    another one. Raises ``UnknownEngineError`` and ``EngineRefusedError``.
    """
    states = KnownEngine.State
    engine = known_engine(name)
    if engine.state == states.GONE:
        raise EngineRefusedError(f"The engine {name} was declared gone.")
    state = states.DRAINING if draining else states.ACTIVE
    with transaction.atomic():
        KnownEngine.objects.known().filter(pk=name).update(state=state)
        announce(CHANNEL)
    log.info("engine_state_changed", engine=name, state=state.value)


def forget_named(name: str, *, by: str, stale: timedelta) -> int:
    """Declare the engine of that name gone for good; as :func:`forget_engine`, of all placed there.

    What waited for it may start elsewhere then, persistent workspaces with empty volumes.
    """
    engine = known_engine(name)
    require_silent(engine, stale=stale)
    there = Q(engine_name=name)
    if engine.engine_id:
        there |= Q(engine_id=engine.engine_id)
        WarmMember.objects.filter(engine_id=engine.engine_id).delete()
    ended = _end_all(there)
    with transaction.atomic():
        if engine.engine_id:
            # Containers wait also where no workspace has ever run.
            WarmMember.objects.filter(engine_id=engine.engine_id).delete()
        KnownEngine.objects.filter(pk=name).update(state=KnownEngine.State.GONE, certificates=None)
        BuildJob.objects.filter(engine_name=name).exclude(
            status=BuildJob.Status.SUCCEEDED, lease_expires_at__isnull=True
        ).exclude(status__in=[BuildJob.Status.FAILED, BuildJob.Status.CANCELLED]).update(
            engine_name=""
        )
        RuntimeInstance.objects.filter(engine_name=name).update(engine_name="")
        announce(CHANNEL)
    log.warning("engine_gone", engine=name, by=by, runtimes=ended)
    return ended


def require_silent(engine: KnownEngine, *, stale: timedelta) -> None:
    """Raise ``EngineLivesError`` while the engine answers a worker that lives."""
    if KnownEngine.objects.answering(stale=stale).filter(pk=engine.pk).exists():
        raise EngineLivesError(
            f"The engine {engine.name} answers its build worker. An engine that lives is drained "
            "(manage.py engine drain); if it is to go anyway, stop its workers first."
        )
    if engine.engine_id:
        require_gone(engine.engine_id, stale=stale)
