"""A real gunicorn beside a test, on the test's own database, as a deployment serves."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.security.test_slow_clients import answers
from tests.stack.free_ports import free_port
from tests.stack.worker_process import ROOT, environment
from tests.support.waiting import LONG_WAIT


class ApiProcess:
    """gunicorn with ``SVC_API_WORKERS`` processes (one, unless told); its log is in ``log``."""

    def __init__(self, log: Path, **settings: str) -> None:
        self.log = log
        self.port = free_port()
        given = {"SVC_API_PORT": str(self.port), "SVC_API_WORKERS": "1", **settings}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py",
                 "controlplane.wsgi"],
                cwd=ROOT,
                env=environment(**given),
                stdout=output,
                stderr=output,
            )  # fmt: skip
        deadline = time.monotonic() + LONG_WAIT
        while not answers(self.port):
            assert self.process.poll() is None, self.told
            assert time.monotonic() < deadline, self.told
            time.sleep(0.1)

    @property
    def told(self) -> str:
        """What it has logged so far."""
        return self.log.read_text(errors="replace")

    def worker_pids(self) -> list[int]:
        """Return the processes that serve."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def resident_bytes(self) -> int:
        """Return the memory of all processes that serve, without what they share.

        Nor what they read of files: whether they share that depends on who else is there.
        """
        total = 0
        for pid in self.worker_pids():
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kilobytes = {line.split()[0]: line.split()[1] for line in lines[1:]}
            total += 1024 * int(kilobytes["Private_Dirty:"])
        return total

    def get(self, path: str) -> tuple[int, bytes]:
        """GET ``path`` on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG_WAIT)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self, timeout: float = LONG_WAIT) -> int:
        """Ask it to end, as a deployment does, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


@contextmanager
def api_process(log: Path, **settings: str) -> Iterator[ApiProcess]:
    """Serve for as long as the block lasts."""
    api = ApiProcess(log, **settings)
    try:
        yield api
    finally:
        try:
            api.stop()
        except subprocess.TimeoutExpired:
            os.kill(api.process.pid, signal.SIGKILL)
            api.process.wait()
            raise
