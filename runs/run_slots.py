"""The slots of the run workers: how many there are, how many are in use, whether any are free."""

from __future__ import annotations

from controlplane.errors import ControlPlaneError
from controlplane.work.models import Heartbeat, SlotUsage, heartbeat_stale
from runs.models import Run

_KINDS = {
    Run.Mode.ONE_SHOT.value: ("commands", "RUN_WORKER_CAPACITY"),
    Run.Mode.INTERACTIVE.value: ("sessions", "RUN_WORKER_SESSIONS"),
    Run.Mode.BOOT.value: ("live workspaces", "RUN_WORKER_WORKSPACES"),
}
"""By mode of run: what the slots are for, and the setting with their number per worker."""


def run_slots() -> dict[str, SlotUsage]:
    """Return the slots of the run workers that are alive, by mode; empty: no worker is alive."""
    stale = heartbeat_stale()
    return Heartbeat.objects.run().slots_in_use(stale=stale)


def check() -> str:
    """Say for readiness that slots are free; raise ``ControlPlaneError`` when a kind has none."""
    exhausted = [
        f"All {usage['capacity']} slots for {_KINDS[mode][0]} are in use; raise {_KINDS[mode][1]} "
        "or start another run worker."
        for mode, usage in run_slots().items()
        if usage["in_use"] >= usage["capacity"] and mode in _KINDS
    ]
    if exhausted:
        raise ControlPlaneError(" ".join(exhausted))
    return "Slots of every kind are free."
