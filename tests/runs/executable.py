"""Runs as the run worker meets them: with an attempt, and perhaps a container."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from controlplane.work.models import Heartbeat
from runs.models import Run
from runs.record.new_record import insert_with_head
from runs.recording import claims
from tests.factories import make_job
from workspaces.models import Attempt, RuntimeInstance

LEASE = timedelta(minutes=1)


def make_runtime(attempt: Attempt, status: str = RuntimeInstance.Status.RUNNING) -> None:
    """Write the runtime of an attempt."""
    final = status in RuntimeInstance.TERMINAL
    RuntimeInstance.objects.create(
        run_id=attempt.run_id,
        attempt=attempt,
        status=status,
        adapter="docker",
        resource_id="c0ffee",
        endpoint="docker-exec://c0ffee",
        launched_at=Now(),
        finished_at=Now() if final else None,
    )


def make_executable(*, mode: str = Run.Mode.ONE_SHOT, **values: Any) -> Run:
    """Create a queued, recorded run of a workspace whose container runs; its boot is over."""
    attempt = values.pop("attempt", None) or make_job().attempt
    Run.objects.filter(pk=attempt.run_id).settle(Run.Status.COMPLETED)
    if not RuntimeInstance.objects.filter(attempt=attempt).exists():
        make_runtime(attempt)
    command = {"executable": "/bin/true", "args": []} if mode == Run.Mode.ONE_SHOT else None
    run = Run(
        **{
            "workspace": attempt.workspace,
            "attempt": attempt,
            "owner_user_id": attempt.sandbox.owner_user_id,
            "harness_id": "shell",
            "mode": mode,
            "recorded": True,
            "command": command,
            **values,
        }
    )
    insert_with_head(run)
    return run


def boot_run(status: str | None) -> Run:
    """Create the boot run of an attempt whose runtime has ``status``; None: there is none."""
    attempt = make_job().attempt
    run = Run.objects.get(pk=attempt.run_id)
    if status is not None:
        make_runtime(attempt, status)
    return run


def claim(run: Run, worker_id: str = "worker-a", lease: timedelta = LEASE) -> Run:
    """Claim ``run`` and return it as the worker sees it."""
    claimed = claims.claim(run.pk, worker_id=worker_id, lease=lease)
    assert claimed is not None
    return claimed


def make_run_worker(worker_id: str, *, seen: timedelta = timedelta(), engine: str = "") -> None:
    """Write the heartbeat of a run worker that was last seen ``seen`` ago."""
    kind = Heartbeat.Kind.RUN
    Heartbeat.objects.beat(
        worker_id, kind=kind, hostname="test", pid=1, capacity=1, engine_name=engine
    )
    Heartbeat.objects.filter(pk=worker_id).update(seen_at=Now() - seen)
