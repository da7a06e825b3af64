"""Why a run has not begun or is not heard: code, sentence, since when, and what happens next."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from controlplane.work.models import SlotsByEngine
from runs.models import Run
from runs.run_slots import run_slots
from workspaces.lifecycle.reasons import Reason, lost_machines, on_engine
from workspaces.models import RuntimeInstance


def reasons_of(runs: Sequence[Run]) -> dict[uuid.UUID, Reason]:
    """Return, by id, why queued runs have not begun, and which running ones are not heard.

    Two queries for all that a worker is to execute, one for all in progress; none without any.
    """
    return _waiting(runs) | _on_lost_machines(runs)


def _waiting(runs: Sequence[Run]) -> dict[uuid.UUID, Reason]:
    waiting = [run for run in runs if _waits_for_a_worker(run)]
    if not waiting:
        return {}
    slots = run_slots()
    runtimes = RuntimeInstance.objects.filter(attempt_id__in={run.attempt_id for run in waiting})
    engines: dict[uuid.UUID | None, str] = dict(runtimes.values_list("attempt_id", "engine_name"))
    return {run.pk: _reason(run, slots, engines.get(run.attempt_id, "")) for run in waiting}


def _on_lost_machines(runs: Sequence[Run]) -> dict[uuid.UUID, Reason]:
    going_on = {
        run.pk: run.attempt_id
        for run in runs
        if run.status == Run.Status.RUNNING and run.attempt_id is not None
    }
    lost = lost_machines(set(going_on.values())) if going_on else {}
    return {pk: lost[attempt_id] for pk, attempt_id in going_on.items() if attempt_id in lost}


def _waits_for_a_worker(run: Run) -> bool:
    return run.status == Run.Status.QUEUED and run.recorded and run.mode == Run.Mode.ONE_SHOT


def _reason(run: Run, slots: SlotsByEngine, engine: str) -> Reason:
    usage = slots.of(engine, run.mode)
    if usage is None:
        return Reason(
            "no-worker",
            f"The run is waiting, and no run worker{on_engine(engine)} is alive.",
            run.queued_at,
            "It is claimed as soon as a run worker runs; start one (manage.py runworker).",
        )
    if usage["in_use"] >= usage["capacity"]:
        return Reason(
            "no-slot",
            f"All {usage['capacity']} slots of the run workers{on_engine(engine)} for commands are "
            "in use.",
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
