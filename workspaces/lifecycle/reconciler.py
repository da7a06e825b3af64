"""Keeping containers, networks and volumes in step with the rows.

What a row wants and is gone makes the runtime ``failed``; what no row wants is removed; what ended
by itself is told. Any worker may do it, one at a time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import structlog
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.database.locks import try_advisory_lock
from workspaces import services as workspaces
from workspaces.credentials.upkeep import keep_renewed
from workspaces.lifecycle.records import records
from workspaces.models import Attempt, BuildJob, RuntimeInstance, WarmMember, Workspace
from workspaces.models.known_engines import here
from workspaces.runtimes import boot
from workspaces.runtimes.base import LaunchError, ObservedRuntime, RuntimeAdapter

log = structlog.get_logger(__name__)

LOST = "runtime-lost"
EXITED = "runtime-exited"
OUT_OF_MEMORY = "runtime-out-of-memory"
STOP_SECONDS = 10.0
"""How long a container has that still runs although its row says that it is over."""
LAST_WORDS_SECONDS = 30.0
"""For how long a pass begins to read what ended workspaces left to say."""
RUNS_IN_A_LINE = 20
"""How many runs one line of the log names."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What one pass changed."""

    lost: int = 0
    ended: int = 0
    removed: int = 0


def reconcile(
    adapter: RuntimeAdapter,
    *,
    instance_id: str,
    grace: timedelta,
    keep_ended: timedelta,
    orphans: Orphans | None = None,
    engine: str = "",
) -> Reconciliation:
    """Bring rows and containers of one engine together once, unless another worker is at it.

    ``grace`` is how old a container must be before it counts as wanted by nobody. A workspace that
    ended by itself is kept for ``keep_ended``, or until it is started again or deleted: its files
    may be all there is of somebody's work. ``orphans`` remembers, from pass to pass, the volumes
    that no row knows; without it they are left alone. ``engine`` is the engine's name where there
    may be several: what a row wants on another one, nobody wants here. Raises ``LaunchError`` when
    the engine cannot be asked.
    """
    engine_id = adapter.engine_id()
    with try_advisory_lock(f"reconcile:{instance_id}:{engine_id}") as held:
        if not held:
            return Reconciliation()
        # In this order: a row that says "running" was written after its container was made, so a
        # container missing from the later list is really gone.
        running = RuntimeInstance.objects.expected_to_run(engine_id=engine_id)
        expected = list(running.values_list("run_id", flat=True))
        observed = {runtime.run_id: runtime for runtime in adapter.list()}
        lost = _lose(adapter, [run_id for run_id in expected if run_id not in observed])
        # Without an exit code it is just being removed; the next pass finds it gone.
        over = [observed[run_id] for run_id in expected if run_id in observed]
        ended = _end(adapter, [each for each in over if not each.running and _is_known(each)])
        wanted, kept = _wanted(engine, engine_id), _kept(keep_ended)
        _end_kept(adapter, [found for run_id, found in observed.items() if run_id in kept])
        removed = _remove_unwanted(adapter, observed, wanted | kept, grace)
        # Of what was stopped only the network may be left. What is wanted is asked once more: to
        # end and to remove takes its time, and nothing is connected yet to the network of a launch
        # that has begun since.
        adapter.sweep_networks(wanted | _wanted(engine, engine_id) | kept & observed.keys())
        _remove_volumes(adapter, orphans or Orphans(keep=timedelta.max))
    return Reconciliation(lost, ended, removed)


def _lose(adapter: RuntimeAdapter, missing: Sequence[uuid.UUID]) -> int:
    """Fail the runtimes whose containers are gone, after another look at the engine."""
    if not missing:
        return 0
    there = {runtime.run_id for runtime in adapter.list()}
    gone = [run_id for run_id in missing if run_id not in there]
    outcome = _Outcome(RuntimeInstance.Status.FAILED, LOST, "The workspace's container is gone.")
    changed = _write(outcome, gone)
    if changed:
        shown = [str(run_id) for run_id in gone[:RUNS_IN_A_LINE]]
        log.warning("runtimes_lost", runtimes=changed, run_ids=shown)
    return changed


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a runtime ended."""

    status: RuntimeInstance.Status
    code: str
    message: str


def _end(adapter: RuntimeAdapter, ended: Sequence[ObservedRuntime]) -> int:
    """Write how each of these containers has ended."""
    by_outcome: dict[_Outcome, list[uuid.UUID]] = {}
    asks_until = time.monotonic() + LAST_WORDS_SECONDS
    for found in ended:
        outcome = _outcome(found)
        # An engine that answers late, or each time in vain, does not keep the others waiting.
        if outcome.code == EXITED and time.monotonic() < asks_until:
            outcome = replace(outcome, message=_last_words(adapter, found) or outcome.message)
        by_outcome.setdefault(outcome, []).append(found.run_id)
    changed = 0
    for outcome, run_ids in by_outcome.items():
        changed += _write(outcome, run_ids)
        shown = [str(run_id) for run_id in run_ids[:RUNS_IN_A_LINE]]
        log.info("runtimes_ended", runtimes=len(run_ids), code=outcome.code, run_ids=shown)
    return changed


def _is_known(found: ObservedRuntime) -> bool:
    """Whether the engine says how it ended."""
    return found.exit_code is not None or bool(found.ended_code)


def _outcome(found: ObservedRuntime) -> _Outcome:
    if found.ended_code:
        return _Outcome(RuntimeInstance.Status.FAILED, found.ended_code, found.ended_message)
    if found.oom_killed:
        return _Outcome(
            RuntimeInstance.Status.FAILED,
            OUT_OF_MEMORY,
            "The workspace ran out of memory and was stopped.",
        )
    if found.exit_code == 0:
        return _Outcome(
            RuntimeInstance.Status.STOPPED,
            "foreground-ended",
            "The foreground process ended with exit code 0.",
        )
    return _Outcome(
        RuntimeInstance.Status.FAILED,
        EXITED,
        f"The workspace's container ended with exit code {found.exit_code}.",
    )


def _last_words(adapter: RuntimeAdapter, found: ObservedRuntime) -> str:
    """Return what the agent left to say of the foreground's end; empty when it did not."""
    try:
        with adapter.read_files(found.run_id, boot.STATUS_FILE) as chunks:
            data = None if chunks is None else boot.read_archived_file(chunks)
    except LaunchError:
        return ""
    status = None if data is None else boot.parse_status(data)
    return "" if status is None else boot.end_of_foreground(status)


def _write(outcome: _Outcome, run_ids: Sequence[uuid.UUID]) -> int:
    """End the runtimes that still run; somebody may have begun to stop one since the look at it."""
    if not run_ids:
        return 0
    with transaction.atomic():
        return workspaces.end_runtimes(
            run_ids, status=outcome.status, code=outcome.code, message=outcome.message
        )


def _wanted(engine: str, engine_id: str) -> set[uuid.UUID]:
    """Return the runs whose container belongs there: launching, running or stopping.

    What was placed on another engine does not belong on this one, though it may have begun here
    before it was placed anew.
    """
    # The members first: the run of one that is claimed by then is in the later lists. One that is
    # claimed after this look counts as waiting.
    members = list(WarmMember.objects.values_list("pk", "run_id"))
    open_attempts = Attempt.objects.filter(
        status__in=[Attempt.Status.QUEUED, Attempt.Status.RUNNING]
    )
    # What is stopping is removed by who stops it, once all of it was read.
    live = RuntimeInstance.objects.filter(
        status__in=[RuntimeInstance.Status.RUNNING, RuntimeInstance.Status.STOPPING]
    )
    if engine:
        placed = BuildJob.objects.filter(attempt=OuterRef("pk"))
        open_attempts = open_attempts.exclude(Exists(placed.exclude(here(engine))))
        live = live.filter(here(engine) | Q(engine_id=engine_id))
    runs = {*open_attempts.values_list("run_id", flat=True), *live.values_list("run_id", flat=True)}
    return runs | {pk for pk, run_id in members if run_id is None or run_id in runs}


def _kept(keep_ended: timedelta) -> set[uuid.UUID]:
    """Return the runs that ended not long ago, whose container holds perhaps somebody's work."""
    kept = RuntimeInstance.objects.filter(
        status__in=RuntimeInstance.TERMINAL,
        finished_at__gt=Now() - keep_ended,
        # It was ready once, and its workspace was neither started again nor deleted since.
        attempt__workspace__deleted_at__isnull=True,
        attempt__status=Attempt.Status.SUCCEEDED,
        attempt__workspace__latest_sandbox__latest_attempt=F("attempt"),
    )
    return set(kept.values_list("run_id", flat=True))


def _end_kept(adapter: RuntimeAdapter, kept: Sequence[ObservedRuntime]) -> None:
    """Have those end that run although their rows say that they are over.

    Their engine was declared gone and came back, or has started them again: nobody can enter them,
    nobody records them, and what they do would be nobody's.
    """
    for found in kept:
        if not found.running:
            continue
        try:
            keep_renewed(adapter, found.run_id)
            adapter.stop(found.run_id, seconds=STOP_SECONDS)
        except LaunchError as exc:
            log.info("runtime_not_ended", run_id=str(found.run_id), code=exc.code)
        else:
            log.warning("runtime_ended", run_id=str(found.run_id), reason="its row says it is over")


def _remove_unwanted(
    adapter: RuntimeAdapter,
    observed: dict[uuid.UUID, ObservedRuntime],
    wanted: set[uuid.UUID],
    grace: timedelta,
) -> int:
    now = timezone.now()
    removed = 0
    for run_id, runtime in observed.items():
        if run_id not in wanted and now - runtime.created_at > grace:
            if runtime.running:
                keep_renewed(adapter, run_id)
            collect = partial(records().collect_from, run_id)
            try:
                removed += int(adapter.remove(run_id, collect=collect))
            except LaunchError as exc:
                log.info("runtime_not_removed", run_id=str(run_id), code=exc.code)
                adapter.engine_id()  # raises when it is the engine that is away
            else:
                log.info("runtime_removed", run_id=str(run_id), reason="no row wants it")
    return removed


@dataclass(slots=True)
class Orphans:
    """The workspaces with volumes that no row knows, and since when this worker has seen them.

    They may be all there is of somebody's work, and a wrong database may be why nobody knows them:
    they go when they were seen for ``keep`` without a break.
    """

    keep: timedelta
    _seen: dict[uuid.UUID, float] = field(default_factory=dict, init=False)

    def due(self, present: Collection[uuid.UUID]) -> list[uuid.UUID]:
        """Return those that were seen for long enough; forgets those that are not present."""
        now = time.monotonic()
        for workspace_id in set(present) - set(self._seen):
            log.warning("volumes_without_workspace", workspace_id=str(workspace_id))
        self._seen = {workspace_id: self._seen.get(workspace_id, now) for workspace_id in present}
        long_ago = now - self.keep.total_seconds()
        return [workspace_id for workspace_id, since in self._seen.items() if since < long_ago]


def _remove_volumes(adapter: RuntimeAdapter, orphans: Orphans) -> None:
    """Remove what a worker that slept through the deletion of its workspace has made again."""
    found = adapter.workspaces_with_volumes()
    rows = Workspace.objects.filter(pk__in=found).values_list("pk", "deleted_at") if found else ()
    known = dict(rows)
    deleted = [workspace_id for workspace_id, at in known.items() if at is not None]
    for workspace_id in [*deleted, *orphans.due(found - set(known))]:
        try:
            removed = adapter.remove_volumes(workspace_id)
        except LaunchError as exc:
            log.info("volumes_not_removed", workspace_id=str(workspace_id), code=exc.code)
        else:
            log.info("volumes_removed", workspace_id=str(workspace_id), volumes=removed)
