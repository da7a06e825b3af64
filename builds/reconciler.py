"""Keeping containers and rows in step.

What a row wants and is gone makes the runtime ``failed``; what no row wants is removed; what ended
by itself is told. Any worker may do it, one at a time.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.locks import try_advisory_lock
from workspaces import services as workspaces
from workspaces.models import Attempt, RuntimeInstance
from workspaces.runtimes.base import ObservedRuntime, RuntimeAdapter

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


def reconcile(adapter: RuntimeAdapter, *, instance_id: str, grace: timedelta) -> Reconciliation:
    """Bring rows and containers together once; does nothing while another worker is at it.

    ``grace`` is how old a container must be before it counts as wanted by nobody. Raises
    ``LaunchError`` when the engine cannot be asked.
    """
    with try_advisory_lock(f"reconcile:{instance_id}") as held:
        if not held:
            return Reconciliation()
        # In this order: a row that says "running" was written after its container was made, so a
        # container missing from the later list is really gone.
        expected = list(RuntimeInstance.objects.expected_to_run().select_related("attempt"))
        observed = {runtime.run_id: runtime for runtime in adapter.list()}
        lost = ended = 0
        for row in expected:
            found = observed.get(row.run_id)
            if found is None:
                lost += _lose(adapter, row)
            elif not found.running:
                ended += _end(row, found)
        removed = _remove_unwanted(adapter, observed, grace)
        adapter.sweep_networks(_wanted())
    return Reconciliation(lost, ended, removed)


def _lose(adapter: RuntimeAdapter, row: RuntimeInstance) -> int:
    if adapter.observe(row.run_id) is not None:
        return 0
    with transaction.atomic():
        changed = workspaces.fail_runtime(
            row.attempt, code=LOST, message="The workspace's container is gone."
        )
    if changed:
        log.warning("runtime_lost", run_id=str(row.run_id))
    return int(changed)


def _end(row: RuntimeInstance, found: ObservedRuntime) -> int:
    with transaction.atomic():
        if found.oom_killed:
            changed = workspaces.fail_runtime(
                row.attempt,
                code=OUT_OF_MEMORY,
                message="The workspace ran out of memory and was ended.",
            )
        elif found.exit_code == 0:
            changed = workspaces.stop_runtime(
                row.attempt,
                code="foreground-ended",
                message="The foreground process ended with exit code 0.",
            )
        else:
            changed = workspaces.fail_runtime(
                row.attempt,
                code=EXITED,
                message=f"The workspace's container ended with exit code {found.exit_code}.",
            )
    if changed:
        log.info("runtime_ended", run_id=str(row.run_id), exit_code=found.exit_code)
    return int(changed)


def _wanted() -> set[uuid.UUID]:
    """Return the runs whose container belongs there: running, or an attempt still at it."""
    return set(
        Attempt.objects.filter(
            Q(status__in=[Attempt.Status.QUEUED, Attempt.Status.RUNNING])
            | Q(runtime__status=RuntimeInstance.Status.RUNNING)
        ).values_list("run_id", flat=True)
    )


def _remove_unwanted(
    adapter: RuntimeAdapter, observed: dict[uuid.UUID, ObservedRuntime], grace: timedelta
) -> int:
    wanted = _wanted()
    now = timezone.now()
    removed = 0
    for run_id, runtime in observed.items():
        if run_id not in wanted and now - runtime.created_at > grace:
            removed += int(adapter.remove(run_id))
            log.info("runtime_removed", run_id=str(run_id), reason="no row wants it")
    return removed
