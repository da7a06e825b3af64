"""A real ``manage.py runworker`` beside a test, on the test's own database and queue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from django.conf import settings

from tests.worker_process import ROOT, environment

QUICK = {
    "WORKER_HEARTBEAT_INTERVAL_MS": "500",
    "WORKER_HEARTBEAT_STALE_MS": "2500",
    "WORKER_SWEEP_INTERVAL_MS": "300",
    "RUN_QUEUED_OVERDUE_MS": "1000",
}


class RunWorkerProcess:
    """A run worker as a process of its own; its log is kept for messages."""

    def __init__(self, log: Path, *, max_runs: int | None = None, **changes: str) -> None:
        self.log = log
        limit = () if max_runs is None else ("--max-runs", str(max_runs))
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "runworker", *limit],
                cwd=ROOT,
                env=environment(
                    WORKSPACE_RUN_QUEUE=settings.WORKSPACE_RUN_QUEUE, **QUICK | changes
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def told(self) -> str:
        """What it has logged so far."""
        return self.log.read_text(errors="replace")

    def wait(self, timeout: float = 60.0) -> int:
        """Wait for its end and return the exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end:\n{self.told[-4000:]}") from None

    def stop(self) -> int:
        """End it in order; at once when it does not within half a minute."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()
