"""A real ``manage.py runworker`` beside a test, on the test's own database and queue."""

from __future__ import annotations

from pathlib import Path

from tests.stack.worker_process import CommandProcess

QUICK = {
    "WORKER_HEARTBEAT_INTERVAL_MS": "500",
    "WORKER_HEARTBEAT_STALE_MS": "2500",
    "WORKER_SWEEP_INTERVAL_MS": "300",
    "RUN_QUEUED_OVERDUE_MS": "1000",
}


class RunWorkerProcess(CommandProcess):
    """A run worker whose times are short."""

    def __init__(self, log: Path, *, max_runs: int | None = None, **changes: str) -> None:
        limit = () if max_runs is None else ("--max-runs", str(max_runs))
        super().__init__(log, "runworker", *limit, **QUICK | changes)
