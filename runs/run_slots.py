"""The slots of the run workers: how many there are, how many are in use, whether any are free."""

from __future__ import annotations

from controlplane.errors import ControlPlaneError
from controlplane.work.models import Heartbeat, SlotsByEngine, heartbeat_stale
from runs.models import Run

_KINDS = {
    Run.Mode.ONE_SHOT.value: ("commands", "RUN_WORKER_CAPACITY"),
    Run.Mode.INTERACTIVE.value: ("sessions", "RUN_WORKER_SESSIONS"),
    Run.Mode.BOOT.value: ("live workspaces", "RUN_WORKER_WORKSPACES"),
}
"""By mode of run: what the slots are for, and the setting with their number per worker."""


def run_slots() -> SlotsByEngine:
    """Return the slots of the run workers that are alive, by engine and mode of run."""
    stale = heartbeat_stale()
    return Heartbeat.objects.run().slots_by_engine(stale=stale)


def check() -> str:
    """Say for readiness that slots are free; raise ``ControlPlaneError`` when a kind has none."""
    slots = run_slots()
    engines = slots.engines()
    exhausted = [
        f"All {usage['capacity']} slots for {kind}{f' on {engine}' if len(engines) > 1 else ''} "
        f"are in use; raise {setting} or start another run worker."
        for engine in engines
        for mode, (kind, setting) in _KINDS.items()
        if (usage := slots.of(engine, mode)) and usage["in_use"] >= usage["capacity"]
    ]
    if exhausted:
        raise ControlPlaneError(" ".join(exhausted))
    return "Slots of every kind are free."
