"""Starts that take a container out of the warm pool, beside ``docker run`` of the same image.

Real API, queue, workers, registry and engine. Runnable alone: ``python -m tests.bench.warm``.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from django.conf import settings  # noqa: E402 - settings first

from runs.run_messages import RUN_REQUESTED  # noqa: E402
from tests.bench.by_hand import ByHand  # noqa: E402
from tests.bench.database import in_own_database  # noqa: E402
from tests.bench.figures import Figure, milliseconds, percentile, report  # noqa: E402
from tests.bench.served import OWNER, SHELL, Api, run_worker, served  # noqa: E402
from tests.stack.worker_process import eventually  # noqa: E402
from tests.support import queues  # noqa: E402
from tests.support.waiting import LONG_WAIT  # noqa: E402
from workspaces.models import BuildJob, Sandbox, WarmMember, WorkspaceEvent  # noqa: E402

STARTS = 30
BY_HAND = 9
P50_SECONDS = 0.060
P99_SECONDS = 0.200
LOOK_SECONDS = 0.002
SIZE = 2
SETTLE_SECONDS = 0.3


def _is_full() -> bool:
    """Whether nobody is filling the pool any more, which takes a processor from a start."""
    return WarmMember.objects.filter(status=WarmMember.Status.READY).count() == SIZE


def _start(api: Api) -> tuple[float, float, dict[str, float]]:
    """Start one out of the pool; the seconds until it is ready, and until a command has printed."""
    eventually(_is_full, what="a full pool", every=0.05)
    time.sleep(SETTLE_SECONDS)
    began, clock = time.perf_counter(), time.time()
    answer = api.start(SHELL)
    status = Sandbox.objects.filter(pk=answer["sandboxId"]).values_list("status", flat=True)
    # Asking the API all the time would take a processor from those who work.
    while status.get() != "ready":
        time.sleep(LOOK_SECONDS)
    ready = time.perf_counter() - began
    path = f"/v1/workspaces/{answer['workspaceId']}/exec"
    printed = api.ask("POST", path, {"command": ["echo", "hello"]})
    first_output = time.perf_counter() - began
    assert printed["stdout"] == "hello\n", printed
    assert WarmMember.objects.filter(run_id=answer["runId"]).exists(), "a cold start"
    stages = _stages(answer, clock)
    api.ask("POST", f"/v1/workspaces/{answer['workspaceId']}/stop", {"ownerUserId": OWNER})
    while status.get() != "stopped":
        time.sleep(0.05)
    return ready, first_output, stages


def _stages(answer: dict[str, str], began: float) -> dict[str, float]:
    """Return how far a start was when, by its rows, in time since the request."""
    job = BuildJob.objects.get(pk=answer["jobId"])
    member = WarmMember.objects.get(run_id=answer["runId"])
    events = WorkspaceEvent.objects.filter(workspace_id=answer["workspaceId"])
    moments = {
        "queued": job.queued_at,
        "claimed": job.claimed_at,
        "published": job.finished_at,
        "taken": member.claimed_at,
        "ready": events.get(type=WorkspaceEvent.Type.RUNTIME_RUNNING).occurred_at,
    }
    return {name: at.timestamp() - began for name, at in moments.items() if at is not None}


def measure() -> Iterator[Figure]:
    """Measure the starts and ``docker run`` in turns."""
    settings.WORKSPACE_RUN_QUEUE = f"workspace-run-executions-bench-{uuid.uuid4().hex[:8]}"
    with served(WORKSPACE_WARM_POOL_SIZE=str(SIZE)) as api, ExitStack() as stack:
        stack.callback(
            queues.purge_and_delete,
            settings.RABBITMQ_URL,
            RUN_REQUESTED.topology(),
            timeout=LONG_WAIT,
        )
        worker = run_worker()
        stack.callback(worker.stop)
        eventually(lambda: "consuming" in worker.told, what="the run worker")
        first = api.start(SHELL)
        api.settled(first, "ready")
        image = BuildJob.objects.get(pk=first["jobId"]).published_digest_reference
        hand = ByHand(image)  # a second start, so that two wait
        api.settled(api.start(SHELL), "ready")
        for _ in range(3):  # the first ones open connections
            _start(api)
        ready: list[float] = []
        printed: list[float] = []
        stages: dict[str, list[float]] = {}
        floor: list[float] = []
        for number in range(STARTS):
            took = _start(api)
            ready.append(took[0])
            printed.append(took[1])
            for name, seconds in took[2].items():
                stages.setdefault(name, []).append(seconds)
            if number % (STARTS // BY_HAND) == 0:
                began = time.perf_counter()
                hand.start()
                floor.append(time.perf_counter() - began)
                hand.stop()
    told = ", ".join(f"{name} {milliseconds(median(each))}" for name, each in stages.items())
    sys.stderr.write(f"load {os.getloadavg()}, {told}\n")
    yield from _figures("ready", ready, floor, target=False)
    yield from _figures("first output of a command", printed, floor, target=True)


def _figures(what: str, took: list[float], floor: list[float], *, target: bool) -> Iterator[Figure]:
    p50, p99 = median(took), percentile(took, 99)
    yield Figure(
        f"warm start, request to {what}, p50 of {len(took)}",
        milliseconds(p50),
        f"{milliseconds(median(floor))} (docker run)",
        p50 / median(floor),
        "<= 60 ms" if target else "",
        not target or p50 <= P50_SECONDS,
    )
    yield Figure(
        "the same, p99",
        milliseconds(p99),
        "",
        None,
        "<= 200 ms" if target else "",
        not target or p99 <= P99_SECONDS,
    )


if __name__ == "__main__":
    sys.exit(report({"warm starts": in_own_database(measure)}))
