"""Real processes count into one table: several of the API, workers that come and go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.controlplane.test_metrics import Page, scrape
from tests.stack.free_ports import free_port
from tests.stack.worker_process import CommandProcess, environment
from tests.support.waiting import LONG_WAIT

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"WORKER_HEARTBEAT_INTERVAL_MS": "500", "WORKER_SWEEP_INTERVAL_MS": "300"}
WAIT_SECONDS = LONG_WAIT


def eventually(condition: object, what: str) -> None:
    """Wait for it: the machine may be at something else."""
    assert callable(condition)
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.2)


@contextmanager
def api(log: Path, processes: int) -> Iterator[str]:
    """Serve the API with several processes on the test's database."""
    port = free_port()
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gunicorn",
                "-c",
                "deploy/gunicorn.conf.py",
                "controlplane.wsgi",
            ],
            cwd=ROOT,
            env=environment(SVC_API_PORT=str(port), SVC_API_WORKERS=str(processes)),
            stdout=output,
            stderr=output,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: server.poll() is not None or answers(url), "the API answers")
        assert server.poll() is None, log.read_text()
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(LONG_WAIT)


def answers(url: str) -> bool:
    """Tell whether somebody answers."""
    try:
        return requests.get(f"{url}/healthz", timeout=LONG_WAIT).ok
    except requests.RequestException:
        return False


def page_of(url: str) -> Page:
    """Scrape one API."""
    return Page(requests.get(f"{url}/metrics", timeout=LONG_WAIT).text)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_one_scrape_shows_what_all_processes_of_the_api_answered(tmp_path: Path) -> None:
    sent = 60
    labels = {"method": "GET", "route": "/v1/runs/{run_id}"}
    # With what earlier tests have asked of this process.
    ours_before = scrape().value("svc_api_request_seconds_count", **labels)
    with api(tmp_path / "api.log", 2) as url:

        def ask() -> None:
            for _ in range(sent // 6):
                requests.get(f"{url}/v1/runs/{os.urandom(4).hex()}", timeout=LONG_WAIT)
                answer = requests.get(
                    f"{url}/v1/runs/018f0000-0000-7000-8000-000000000000", timeout=LONG_WAIT
                )
                assert answer.status_code == 404

        before = page_of(url).value("svc_api_request_seconds_count", **labels)
        askers = [threading.Thread(target=ask) for _ in range(6)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        seen: list[float] = []

        def all_there() -> bool:
            seen.append(page_of(url).value("svc_api_request_seconds_count", **labels) - before)
            return seen[-1] >= sent

        eventually(all_there, "every answer is counted")
        assert seen[-1] == sent
    # The last ones are written when the processes end.
    assert scrape().value("svc_api_request_seconds_count", **labels) - ours_before == sent


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("command", "worker"), [("buildworker", "build"), ("runworker", "run")])
def test_the_counts_of_workers_survive_their_end(tmp_path: Path, command: str, worker: str) -> None:
    labels = {"worker": worker, "task": "sweep", "outcome": "done"}

    def swept() -> float:
        return scrape().value("svc_sweeps_total", **labels)

    first = CommandProcess(tmp_path / "first.log", command, **QUICK)
    try:
        eventually(lambda: swept() > 0, "a worker has swept")
        eventually(
            lambda: scrape().value(f"svc_{worker}_workers", state="alive") > 0, "it is alive"
        )
        os.killpg(first.process.pid, signal.SIGKILL)
        first.wait()
    finally:
        first.stop()
    counted = swept()
    assert counted > 0
    second = CommandProcess(tmp_path / "second.log", command, **QUICK)
    try:
        eventually(lambda: swept() > counted, "another one goes on counting")
    finally:
        assert second.stop() == 0, second.told
