"""How long an exec takes, from its request to its answer, beside ``docker exec`` and by its parts.

Real API, run worker, queue and engine. Runnable alone: ``python -m tests.bench.exec``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from django.conf import settings  # noqa: E402 - settings first

from runs.agent.record.frames import Kind  # noqa: E402
from runs.models import Run, RunCheckpoint, RunEvent  # noqa: E402
from runs.run_messages import RUN_REQUESTED  # noqa: E402
from tests.bench.database import in_own_database  # noqa: E402
from tests.bench.figures import Figure, milliseconds, percentile, report  # noqa: E402
from tests.bench.served import SHELL, Api, run_worker, served  # noqa: E402
from tests.stack.worker_process import eventually  # noqa: E402
from tests.support import queues  # noqa: E402
from tests.support.waiting import LONG_WAIT  # noqa: E402
from workspaces.models import RuntimeInstance  # noqa: E402

EXECS = 200
ROUNDS = 5
"""So often ours and ``docker exec`` take turns, as a busy machine has to be busy for both."""
STAGES = {
    Kind.RECORD_STARTED: "recorded",
    Kind.PROCESS_STARTED: "program started",
    Kind.PROCESS_EXITED: "program ended",
    Kind.RECORD_SEALED: "sealed",
}
P50_SECONDS = 0.015
P99_SECONDS = 0.050


@contextmanager
def place() -> Iterator[tuple[Api, dict[str, Any]]]:
    """A ready workspace of the default database, and a run worker."""
    settings.WORKSPACE_RUN_QUEUE = f"workspace-run-executions-bench-{uuid.uuid4().hex[:8]}"
    with served() as api:
        worker = run_worker()
        try:
            eventually(lambda: "consuming" in worker.told, what="the run worker")
            started = api.start(SHELL)
            api.settled(started, "ready")
            yield api, started
        finally:
            worker.stop()
            queues.purge_and_delete(
                settings.RABBITMQ_URL, RUN_REQUESTED.topology(), timeout=LONG_WAIT
            )


@dataclass(frozen=True, slots=True)
class Asked:
    """One exec as its client saw it: when it was asked for and answered, by the clock."""

    run_id: str
    began: float
    ended: float


def of_true(api: Api, started: dict[str, Any], number: int = EXECS) -> list[Asked]:
    """Ask for so many execs of ``true``, one after the other, over one connection."""
    asked = []
    path = f"/v1/workspaces/{started['workspaceId']}/exec"
    for _ in range(number):
        began = time.time()
        answer = api.ask("POST", path, {"command": ["true"]})
        asked.append(Asked(answer["runId"], began, time.time()))
        if answer.get("exitCode") != 0:
            raise RuntimeError(f"true did not end well: {answer}")
    return asked


def by_hand(started: dict[str, Any], number: int) -> list[float]:
    """Return the seconds of so many times ``docker exec`` of ``true``."""
    container = RuntimeInstance.objects.get(attempt_id=started["attemptId"]).resource_id
    arguments = [settings.DOCKER_CLI, "exec", "--user", "workspace", container, "true"]
    took = []
    for _ in range(number):
        began = time.perf_counter()
        subprocess.run(
            arguments, check=True, env={**os.environ, "DOCKER_HOST": settings.DOCKER_HOST}
        )
        took.append(time.perf_counter() - began)
    return took


def stages(asked: Sequence[Asked]) -> str:
    """Return how far the median exec was when, by rows and events, in time since the request."""
    moments: dict[str, list[float]] = {}

    def note(name: str, moment: float, one: Asked) -> None:
        moments.setdefault(name, []).append(moment - one.began)

    for one in asked:
        run = Run.objects.get(pk=one.run_id)
        assert run.started_at is not None
        note("queued", run.queued_at.timestamp(), one)
        note("claimed", run.started_at.timestamp(), one)
        events = RunEvent.objects.filter(run_number=run.number, kind__in=STAGES)
        for kind, moment in events.order_by("sequence").values_list("kind", "wall_us"):
            note(STAGES[kind], moment / 1e6, one)
        stored = RunCheckpoint.objects.filter(run_number=run.number).latest("sequence")
        note("being stored", stored.ingested_at.timestamp(), one)
        note("answered", one.ended, one)
    return ", ".join(f"{name} {milliseconds(median(found))}" for name, found in moments.items())


def figures(api: Api, started: dict[str, Any]) -> list[Figure]:
    """Measure execs in a workspace that is ready."""
    of_true(api, started, 5)  # the first ones open connections
    asked: list[Asked] = []
    floor: list[float] = []
    for _ in range(ROUNDS):
        asked += of_true(api, started, EXECS // ROUNDS)
        floor += by_hand(started, EXECS // ROUNDS // 4)
    took = [one.ended - one.began for one in asked]
    p50, p99 = median(took), percentile(took, 99)
    sys.stderr.write(f"{stages(asked)}\n")
    return [
        Figure(
            f"exec of true, request to answer, p50 of {EXECS}",
            milliseconds(p50),
            f"{milliseconds(median(floor))} (docker exec)",
            p50 / median(floor),
            "<= 15 ms",
            p50 <= P50_SECONDS,
        ),
        Figure(
            f"exec of true, request to answer, p99 of {EXECS}",
            milliseconds(p99),
            "",
            None,
            "<= 50 ms",
            p99 <= P99_SECONDS,
        ),
    ]


def measure() -> list[Figure]:
    """Return the figures of execs, measured in the default database."""
    with place() as (api, started):
        return figures(api, started)


if __name__ == "__main__":
    sys.exit(report({"execs": in_own_database(measure)}))
