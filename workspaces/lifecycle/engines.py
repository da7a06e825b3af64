"""Engines that workspaces run on, and declaring one of them gone for good.

Only a worker of an engine can say how the workspaces there are, so while there is none, everything
of it waits: it may come back. That it will not is something that only an operator knows.
"""

from __future__ import annotations

import contextlib
import time
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
from workspaces.engines.certificates import remove_unpacked
from workspaces.models import ENGINE_GONE, BuildJob, RuntimeInstance, Transition, WarmMember
from workspaces.models import Engine as KnownEngine
from workspaces.models.known_engines import CHANNEL, LOCAL_ENGINE

log = structlog.get_logger(__name__)

MESSAGE = "The engine that the workspace ran on is gone, and with it what was stored only there."
AT_ONCE = 200
"""How many runtimes end in one transaction."""
LOOK_AGAIN_SECONDS = 0.5
_RUNTIME = "workspace__latest_sandbox__latest_attempt__runtime"
_PRESENT = (RuntimeInstance.Status.RUNNING, RuntimeInstance.Status.STOPPING)
_UNDONE = Q(status=BuildJob.Status.QUEUED) | Q(lease_expires_at__isnull=False)
"""The jobs that a worker has something to do for: they wait, build or launch."""


class EngineLivesError(ControlPlaneError):
    """A live worker uses the engine, or may use it, as its own engine has never answered."""


class UnknownEngineError(ControlPlaneError):
    """No row names such an engine."""


@dataclass(slots=True)
class EngineSummary:
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
    named: str | None = None
    """What the operator calls it, where there are several: its workers can be ended."""

    @property
    def may_be_forgotten(self) -> bool:
        """Whether no worker is in the way."""
        return self.named is not None or not self.workers


def engines(*, stale: timedelta) -> list[EngineSummary]:
    """Return the engines that something runs on or a worker is of, the busiest first."""
    found: dict[str, EngineSummary] = {}

    def of(engine_id: str) -> EngineSummary:
        return found.setdefault(engine_id, EngineSummary(engine_id))

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
    for engine_id, engine in found.items():
        engine.named = one_of_several(engine_id)
    return sorted(found.values(), key=lambda one: (-one.running - one.stopping, one.engine_id))


def look_at(engine_id: str, *, stale: timedelta) -> EngineSummary:
    """Return what the rows say of one engine; raise ``UnknownEngineError`` when none names it."""
    for engine in engines(stale=stale):
        if engine.engine_id == engine_id:
            return engine
    if engine_id and RuntimeInstance.objects.filter(engine_id=engine_id).exists():
        return EngineSummary(engine_id)
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


def forget_engine(engine_id: str, *, by: str, stale: timedelta, wait: float = 0.0) -> int:
    """Declare an engine gone for good, and return how many runtimes have ended with it.

    What counts as running or stopping there becomes ``failed`` (``engine-gone``); then whoever
    looks after transitions and records no longer waits for that engine. May be repeated,
    also after a crash on the way. Containers of an engine that comes back nevertheless are ended
    by its reconciler, which keeps their files as those of any other that ended.

    Of several engines it is given up by its name (:func:`forget_named`). Raises
    ``UnknownEngineError`` and ``EngineLivesError``; then nothing has failed.
    """
    engine = look_at(engine_id, stale=stale)
    named = one_of_several(engine_id)
    if named is not None:
        return forget_named(named, by=by, stale=stale, wait=wait)
    require_gone(engine_id, stale=stale)
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


def one_of_several(engine_id: str) -> str | None:
    """Return the name of the engine where there are others: what is placed there has to move."""
    known = KnownEngine.objects.known()
    name = known.filter(engine_id=engine_id).values_list("name", flat=True).first()
    return name if name is not None and known.exclude(pk=name).exists() else None


def require_forgettable(engine_id: str, *, stale: timedelta) -> None:
    """Raise ``EngineLivesError`` where a worker that lives is in the way.

    The workers of one of several engines are ended first, those of the only one are not: they are
    the workers of whatever engine comes in its place.
    """
    if one_of_several(engine_id) is None:
        require_gone(engine_id, stale=stale)


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
                f"This engine is already known: it is called {twin}. If it is another machine, "
                "copied from that one, remove /etc/docker/key.json and the file engine-id "
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
    """Have an engine take nothing new, or take starts again, also one that is leaving.

    What runs there goes on until it is stopped; what waits and is bound to no engine is placed on
    another one. Raises ``UnknownEngineError`` and ``EngineRefusedError``.
    """
    states = KnownEngine.State
    known_engine(name)
    state = states.DRAINING if draining else states.ACTIVE
    with transaction.atomic():
        engine = KnownEngine.objects.select_for_update().get(pk=name)
        if engine.state == states.GONE:
            raise EngineRefusedError(f"The engine {name} was declared gone.")
        if draining and engine.state == states.LEAVING:
            raise EngineRefusedError(
                f"The engine {name} is already leaving; manage.py engine undrain takes it back."
            )
        KnownEngine.objects.filter(pk=name).update(state=state)
        announce(CHANNEL)
    log.info("engine_state_changed", engine=name, state=state.value)


# ------------------------------------------------------------ forgetting, by name


def begin_forgetting(name: str, *, by: str) -> None:
    """Have the workers of an engine end, so that it can be gone; raises ``UnknownEngineError``.

    Nothing is placed there any more. ``drain_engine`` takes it back as long as it is not gone.
    """
    known_engine(name)
    with transaction.atomic():
        KnownEngine.objects.known().filter(pk=name).update(state=KnownEngine.State.LEAVING)
        announce(CHANNEL)
    log.warning("engine_leaving", engine=name, by=by)


def finish_forgetting(name: str, *, by: str, stale: timedelta) -> int:
    """Declare an engine gone that is leaving; as :func:`forget_engine`, of all placed there.

    What waited for it may start elsewhere then, persistent workspaces with empty volumes. May be
    repeated for one that is gone. Raises ``EngineLivesError`` while a worker of it lives, or has
    heard it just now, and ``EngineRefusedError`` when it was taken back; then nothing has changed.
    """
    with transaction.atomic():
        engine = KnownEngine.objects.select_for_update().get(pk=name)
        if engine.state not in (KnownEngine.State.LEAVING, KnownEngine.State.GONE):
            raise EngineRefusedError(
                f"The engine {name} was taken back meanwhile (manage.py engine undrain)."
            )
        if engine.state == KnownEngine.State.LEAVING:
            require_silent(engine, stale=stale)
            # First of all: from here on nobody takes it back.
            KnownEngine.objects.filter(pk=name).update(
                state=KnownEngine.State.GONE, certificates=None
            )
    there = Q(engine_name=name)
    # The same machine may have been added again under another name: what runs there is of that one.
    engine_id = "" if _is_known_again(engine) else engine.engine_id
    if engine_id:
        there |= Q(engine_id=engine_id)
    ended = _end_all(there)
    with transaction.atomic():
        if engine_id:
            # Containers wait also where no workspace has ever run.
            WarmMember.objects.filter(engine_id=engine_id).delete()
        BuildJob.objects.filter(_UNDONE, engine_name=name).update(engine_name="")
        RuntimeInstance.objects.filter(engine_name=name).update(engine_name="")
        announce(CHANNEL)
    remove_unpacked(name)
    log.warning("engine_gone", engine=name, by=by, runtimes=ended)
    return ended


def _is_known_again(engine: KnownEngine) -> bool:
    others = KnownEngine.objects.known().filter(engine_id=engine.engine_id)
    return others.exclude(pk=engine.pk).exists()


def forget_named(name: str, *, by: str, stale: timedelta, wait: float = 0.0) -> int:
    """Forget the engine of that name: end its workers, then declare it gone.

    Waits for its workers for ``wait`` seconds. Raises ``EngineLivesError`` when it is not silent by
    then: it stays leaving, and is gone when somebody calls ``finish_forgetting`` later. The only
    engine is not given up by its name (``EngineRefusedError``): nothing could start any more.
    """
    _require_another(name)
    begin_forgetting(name, by=by)
    deadline = time.monotonic() + wait
    while True:
        try:
            return finish_forgetting(name, by=by, stale=stale)
        except EngineLivesError as error:
            if time.monotonic() >= deadline:
                raise EngineLivesError(
                    f"The engine {name} is leaving, and not gone yet. {error.detail} It is gone as "
                    "soon as that is over (manage.py engineworkers sees to it, or repeat this); "
                    "manage.py engine undrain takes it back."
                ) from error
        time.sleep(LOOK_AGAIN_SECONDS)


def _require_another(name: str) -> None:
    known = KnownEngine.objects.known()
    if known.filter(pk=name).exists() and not known.exclude(pk=name).exists():
        raise EngineRefusedError(
            f"{name} is the only engine, and nothing could start without it. Add another one first "
            "(manage.py engine add); or, if its machine was replaced, declare gone what was on the "
            "old one: manage.py forgetengine."
        )


def wait_for_workers(stale: timedelta) -> float:
    """Return how many seconds workers may take to end: the last ones are killed, and then stale.

    That takes half a minute; on a machine with much else to do it takes longer.
    """
    return stale.total_seconds() + 300.0


def finish_all(*, stale: timedelta) -> None:
    """Declare the engines gone that are leaving and have no workers any more.

    Where somebody was killed while doing so, what is left there ends now. That may be a name alone,
    which no worker serves any more.
    """
    states = KnownEngine.State
    for engine in KnownEngine.objects.filter(state__in=[states.LEAVING, states.GONE]):
        if engine.state == states.GONE and not _is_anything_left(engine):
            continue
        with contextlib.suppress(EngineLivesError, EngineRefusedError):
            finish_forgetting(engine.pk, by="engineworkers", stale=stale)


def _is_anything_left(gone: KnownEngine) -> bool:
    """Whether ``finish_forgetting`` has something to do for an engine that is gone."""
    if RuntimeInstance.objects.filter(engine_name=gone.pk).exists():
        return True
    if BuildJob.objects.filter(_UNDONE, engine_name=gone.pk).exists():
        return True
    members = WarmMember.objects.filter(engine_id=gone.engine_id)
    return bool(gone.engine_id) and members.exists() and not _is_known_again(gone)


def require_silent(engine: KnownEngine, *, stale: timedelta) -> None:
    """Raise ``EngineLivesError`` while a worker of the engine lives, or has just heard it."""
    if engine.engine_id:
        require_gone(engine.engine_id, stale=stale)
    if KnownEngine.objects.answering(stale=stale).filter(pk=engine.pk).exists():
        raise EngineLivesError(f"A worker has heard the engine {engine.name} just now.")
