"""How soon what a program writes in a workspace can be read from the timeline over the API.

A real workspace, a real run worker: a program writes the time of its own clock line by line, and a
client looks at the run's timeline as fast as it is answered. Runnable alone:
``python -m tests.bench.record lag``.
"""

from __future__ import annotations

import base64
import time
import uuid
from statistics import median

from django.conf import settings

from runs.run_messages import RUN_REQUESTED
from tests.bench.figures import Figure, milliseconds, percentile
from tests.bench.served import OWNER, SHELL, Api, run_worker, served
from tests.support import queues
from tests.support.waiting import LONG_WAIT

LINES = 200
PAUSE_SECONDS = 0.05
TARGET_SECONDS = 0.3
PROGRAM = f"""
import sys, time
for number in range({LINES}):
    print(time.time(), flush=True)
    time.sleep({PAUSE_SECONDS})
"""


def measure() -> list[Figure]:
    """Return the figure of the lag, measured in the default database."""
    settings.WORKSPACE_RUN_QUEUE = f"workspace-run-executions-bench-{uuid.uuid4().hex[:8]}"
    with served() as api:
        worker = run_worker()
        try:
            lags = _lags(api)
        finally:
            worker.stop()
            queues.purge_and_delete(
                settings.RABBITMQ_URL, RUN_REQUESTED.topology(), timeout=LONG_WAIT
            )
    p50, p95 = median(lags), percentile(lags, 95)
    return [
        Figure(
            f"written in the workspace to visible in the timeline, p95 of {len(lags)}",
            milliseconds(p95),
            f"p50 {milliseconds(p50)}",
            None,
            "<= 300 ms",
            p95 <= TARGET_SECONDS,
        )
    ]


def _lags(api: Api) -> list[float]:
    """Return, for each line, the seconds from its writing to the answer that shows its bytes."""
    started = api.start(SHELL)
    api.settled(started, "ready")
    run = api.ask(
        "POST",
        "/v1/runs",
        {
            "ownerUserId": OWNER,
            "workspaceId": started["workspaceId"],
            "harnessId": "shell",
            "command": {"executable": "python3", "args": ["-c", PROGRAM]},
        },
    )
    path = f"/v1/runs/{run['runId']}"
    seen: dict[str, float] = {}
    following = "1"
    while True:
        page = api.ask("GET", f"{path}/timeline?fromSequence={following}")
        now = time.time()
        for item in page["items"]:
            seen[item["sequence"]] = now
            following = str(int(item["sequence"]) + 1)
        if any(item["kind"] == "recordSealed" for item in page["items"]):
            break
    lags: list[float] = []
    rest = b""
    for sequence, at in seen.items():
        event = api.ask("GET", f"{path}/events/{sequence}")
        if event["payloadCase"] != "ioChunk":
            continue
        *lines, rest = (rest + base64.b64decode(event["contentBase64"])).split(b"\n")
        lags += [at - float(line) for line in lines]
    if len(lags) != LINES:
        raise RuntimeError(f"{len(lags)} of {LINES} lines were found")
    return lags
