"""Keeping containers and rows in step.

What a row wants and is gone makes the runtime ``failed``; what no row wants is removed; what ended
by itself is told. Any worker may do it, one at a time.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import structlog
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from builds.boot_record import salvage_container
from builds.credential_upkeep import keep_renewed
from controlplane.locks import try_advisory_lock
from workspaces import services as workspaces
from workspaces.models import Attempt, RuntimeInstance, Workspace
from workspaces.runtimes.base import LaunchError, ObservedRuntime, RuntimeAdapter

log = structlog.get_logger(__name__)

LOST = "runtime-lost"
EXITED = "runtime-exited"
OUT_OF_MEMORY = "runtime-out-of-memory"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What one pass changed."""

    lost: int = 0
    ended: int = 0
    removed: int = 0


def reconcile(
    adapter: RuntimeAdapter, *, instance_id: str, grace: timedelta, keep_ended: timedelta
) -> Reconciliation:
    """Bring rows and containers of one engine together once, unless another worker is at it.

    ``grace`` is how old a container must be before it counts as wanted by nobody. A workspace that
    ended by itself is kept for ``keep_ended``, or until it is started again: its files may be all
    there is of somebody's work. Raises ``LaunchError`` when the engine cannot be asked.
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
        lost = ended = 0
        for run_id in expected:
            found = observed.get(run_id)
            if found is None:
                lost += _lose(adapter, run_id)
            elif not found.running and found.exit_code is not None:
                # Without an exit code it is just being removed; the next pass finds it gone.
                ended += _end(run_id, found)
        wanted = _wanted(keep_ended)
        removed = _remove_unwanted(adapter, observed, wanted, grace)
        adapter.sweep_networks(wanted)
        _remove_volumes_of_deleted(adapter)
    return Reconciliation(lost, ended, removed)


def _lose(adapter: RuntimeAdapter, run_id: uuid.UUID) -> int:
    if adapter.observe(run_id) is not None:
        return 0
    with transaction.atomic():
        if not _still_runs(run_id):
            return 0
        changed = workspaces.fail_runtime(
            Attempt.objects.get(run_id=run_id),
            code=LOST,
            message="The workspace's container is gone.",
        )
    if changed:
        log.warning("runtime_lost", run_id=str(run_id))
    return int(changed)


def _end(run_id: uuid.UUID, found: ObservedRuntime) -> int:
    with transaction.atomic():
        if not _still_runs(run_id):
            return 0
        attempt = Attempt.objects.get(run_id=run_id)
        if found.oom_killed:
            changed = workspaces.fail_runtime(
                attempt,
                code=OUT_OF_MEMORY,
                message="The workspace ran out of memory and was ended.",
            )
        elif found.exit_code == 0:
            changed = workspaces.stop_runtime(
                attempt,
                code="foreground-ended",
                message="The foreground process ended with exit code 0.",
            )
        else:
            changed = workspaces.fail_runtime(
                attempt,
                code=EXITED,
                message=f"The workspace's container ended with exit code {found.exit_code}.",
            )
    if changed:
        log.info("runtime_ended", run_id=str(run_id), exit_code=found.exit_code)
    return int(changed)


def _still_runs(run_id: uuid.UUID) -> bool:
    """Lock the runtime; False when somebody has begun to stop it since it was looked at."""
    rows = RuntimeInstance.objects.select_for_update().filter(run_id=run_id)
    return rows.filter(status=RuntimeInstance.Status.RUNNING).exists()


def _wanted(keep_ended: timedelta) -> set[uuid.UUID]:
    """Return the runs whose container belongs there: launching, running, or ended a while ago."""
    open_attempts = Attempt.objects.filter(
        status__in=[Attempt.Status.QUEUED, Attempt.Status.RUNNING]
    )
    # What is stopping is removed by who stops it, once all of it was read.
    live = RuntimeInstance.objects.filter(
        status__in=[RuntimeInstance.Status.RUNNING, RuntimeInstance.Status.STOPPING]
    )
    kept = RuntimeInstance.objects.filter(
        status__in=RuntimeInstance.TERMINAL,
        finished_at__gt=Now() - keep_ended,
        # It was ready once, and its workspace has not been started again since.
        attempt__status=Attempt.Status.SUCCEEDED,
        attempt__workspace__latest_sandbox__latest_attempt=F("attempt"),
    )
    return {
        *open_attempts.values_list("run_id", flat=True),
        *live.values_list("run_id", flat=True),
        *kept.values_list("run_id", flat=True),
    }


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
            removed += int(adapter.remove(run_id, salvage=partial(salvage_container, run_id)))
            log.info("runtime_removed", run_id=str(run_id), reason="no row wants it")
    return removed


def _remove_volumes_of_deleted(adapter: RuntimeAdapter) -> None:
    """Remove what a worker that slept through the deletion of its workspace has made again."""
    found = adapter.workspaces_with_volumes()
    deleted = Workspace.objects.filter(pk__in=found, deleted_at__isnull=False) if found else ()
    for workspace in deleted:
        try:
            removed = adapter.remove_volumes(workspace.pk)
        except LaunchError as exc:
            log.info("volumes_not_removed", workspace_id=str(workspace.pk), code=exc.code)
        else:
            log.info("volumes_removed", workspace_id=str(workspace.pk), volumes=removed)
