"""Why a run has not begun: code, sentence, since when, and what happens next."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from controlplane.work.models import SlotUsage
from runs.models import Run
from runs.run_slots import run_slots
from workspaces.lifecycle.reasons import Reason


def reasons_of(runs: Sequence[Run]) -> dict[uuid.UUID, Reason]:
    """Return, by id, why each queued run that a worker is to execute has not begun.

    One query for any number of runs, and none when nothing is queued.
    """
    waiting = [run for run in runs if _waits_for_a_worker(run)]
    if not waiting:
        return {}
    slots = run_slots()
    return {run.pk: _reason(run, slots) for run in waiting}


def _waits_for_a_worker(run: Run) -> bool:
    return run.status == Run.Status.QUEUED and run.recorded and run.mode == Run.Mode.ONE_SHOT


def _reason(run: Run, slots: Mapping[str, SlotUsage]) -> Reason:
    usage = slots.get(run.mode)
    if usage is None:
        return Reason(
            "no-worker",
            "The run is waiting, and no run worker is alive.",
            run.queued_at,
            "It is claimed as soon as a run worker runs; start one (manage.py runworker).",
        )
    if usage["in_use"] >= usage["capacity"]:
        return Reason(
            "no-slot",
            f"All {usage['capacity']} slots of the run workers for commands are in use.",
            run.queued_at,
            "It is claimed when another command ends. Raise RUN_WORKER_CAPACITY or start another "
            "run worker if that is too slow.",
        )
    return Reason(
        "queued",
        "The run is waiting for a run worker to claim it.",
        run.queued_at,
        "A run worker claims it and starts it in the workspace.",
    )
