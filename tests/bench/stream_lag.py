"""How soon what a program writes in a workspace reaches a reader's socket.

A real workspace, a real run worker: a program writes the time of its own clock line by line, and a
reader of the run's stream notes when each line arrives. The floor is the same program in the same
container under ``docker exec``, read from a pipe.
"""

from __future__ import annotations

import base64
import os
import subprocess
import time
import uuid
from collections.abc import Iterator

from django.conf import settings

from runs.run_messages import RUN_REQUESTED
from tests.bench.figures import PERCENTILES, Figure, milliseconds
from tests.bench.record_lag import LINES, PROGRAM
from tests.bench.served import OWNER, SHELL, Api, run_worker, served
from tests.runs.streaming.event_stream import Follower
from tests.support import queues
from tests.support.waiting import LONG_WAIT

TARGETS = {"p50": 0.025, "p99": 0.1}


def measure() -> list[Figure]:
    """Return the figures, measured in the default database."""
    settings.WORKSPACE_RUN_QUEUE = f"workspace-run-executions-bench-{uuid.uuid4().hex[:8]}"
    with served() as api:
        worker = run_worker()
        try:
            started = api.start(SHELL)
            api.settled(started, "ready")
            ours = _streamed(api, started["workspaceId"])
            workspace = api.ask("GET", f"/v1/workspaces/{started['workspaceId']}")
            floor = _by_docker(workspace["runtime"]["resourceId"])
        finally:
            worker.stop()
            queues.purge_and_delete(
                settings.RABBITMQ_URL, RUN_REQUESTED.topology(), timeout=LONG_WAIT
            )
    return list(_figures(ours, floor))


def _figures(ours: list[float], floor: list[float]) -> Iterator[Figure]:
    for name, of in PERCENTILES.items():
        took, least = of(ours), of(floor)
        yield Figure(
            f"written in the workspace to the reader's socket, {name} of {len(ours)}",
            milliseconds(took),
            f"docker exec {milliseconds(least)}",
            took / least,
            f"<= {milliseconds(TARGETS[name])}",
            took <= TARGETS[name],
        )


def _streamed(api: Api, workspace_id: str) -> list[float]:
    """Return the seconds from the writing of each line to its arrival in the stream."""
    run = api.ask(
        "POST",
        "/v1/runs",
        {
            "ownerUserId": OWNER,
            "workspaceId": workspace_id,
            "harnessId": "shell",
            "command": {"executable": "python3", "args": ["-c", PROGRAM]},
        },
    )
    lags: list[float] = []
    rest = b""
    with Follower(api.connection.port, f"/v1/runs/{run['runId']}/stream") as follower:
        while (events := follower.receive()) is not None:
            now = time.time()
            for event in events:
                if event.event == "output":
                    rest += base64.b64decode(event.json["contentBase64"])
                    *lines, rest = rest.split(b"\n")
                    lags += [now - float(line) for line in lines]
    return _all(lags)


def _by_docker(container: str) -> list[float]:
    command = [settings.DOCKER_CLI, "exec", container, "python3", "-c", PROGRAM]
    env = {**os.environ, "DOCKER_HOST": settings.DOCKER_HOST}
    lags = []
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lags.append(time.time() - float(line))
    return _all(lags)


def _all(lags: list[float]) -> list[float]:
    if len(lags) != LINES:
        raise RuntimeError(f"{len(lags)} of {LINES} lines were found")
    return lags
