"""Whoever reads a log knows of each line which request, job, run and process it belongs to."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import structlog
from django.test import Client

from controlplane.logging import carried, logging_config, named_process
from tests.stack.free_ports import free_port
from tests.stack.worker_process import CommandProcess
from tests.support.waiting import LONG_WAIT

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = LONG_WAIT
log = structlog.get_logger("tests")


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait for it: the machine may be at something else."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.1)


def lines_of(told: str) -> list[dict[str, Any]]:
    """Return the lines of a log, all of which have to be JSON; the last one may be half."""
    return [json.loads(line) for line in told.splitlines(keepends=True) if line.endswith("\n")]


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """The lines that are logged meanwhile, as they would come out, but for those of others."""
    structlog.contextvars.clear_contextvars()  # of what tests before have called without a request
    found: list[dict[str, Any]] = []
    before = set(threading.enumerate()) - {threading.current_thread()}
    configured = logging_config(level="INFO", log_format="json")["formatters"]["structured"]
    formatter = structlog.stdlib.ProcessorFormatter(
        processors=configured["processors"], foreign_pre_chain=configured["foreign_pre_chain"]
    )

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if threading.current_thread() not in before:
                found.append(json.loads(formatter.format(record)))

    handler = Handler()
    logging.getLogger().addHandler(handler)
    yield found
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_traceback_shows_no_values_of_variables(log_format: str) -> None:
    configured = logging_config(level="INFO", log_format=log_format)["formatters"]["structured"]
    formatter = structlog.stdlib.ProcessorFormatter(
        processors=configured["processors"], foreign_pre_chain=configured["foreign_pre_chain"]
    )

    def fail(secret: str) -> None:
        raise RuntimeError

    try:
        fail("canary-" + "of-a-variable")
    except RuntimeError:
        error = sys.exc_info()
    record = logging.LogRecord("a", logging.ERROR, __file__, 1, "It failed.", (), error)
    told = formatter.format(record)
    assert "RuntimeError" in told
    assert "canary-of-a-variable" not in told


def test_what_a_process_is_stands_on_every_line(lines: list[dict[str, Any]]) -> None:
    with named_process(worker_id="w-1"):
        log.info("ours")
        logging.getLogger("library").warning("theirs")
        thread = threading.Thread(target=lambda: log.info("of another thread"))
        thread.start()
        thread.join()
        with structlog.contextvars.bound_contextvars(worker_id="w-2"):
            log.info("bound wins")
    log.info("after")
    assert [line.get("worker_id") for line in lines] == ["w-1", "w-1", "w-1", "w-2", None]


def test_what_is_bound_goes_along_to_other_threads(lines: list[dict[str, Any]]) -> None:
    with structlog.contextvars.bound_contextvars(job_id="j-1"):
        tell = carried(log.info)
    threads = [threading.Thread(target=tell, args=(f"n{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line["job_id"] for line in lines] == ["j-1"] * 3


@pytest.mark.django_db
def test_a_request_that_names_a_run_says_so_and_the_next_one_does_not(
    lines: list[dict[str, Any]],
) -> None:
    run_id = "018f0000-0000-7000-8000-000000000000"
    Client().get(f"/v1/runs/{run_id}", headers={"x-request-id": "r-1"})
    Client().get("/healthz", headers={"x-request-id": "r-2"})
    answered = [line for line in lines if line["event"] == "request_answered"]
    assert [(line["request_id"], line.get("run_id")) for line in answered] == [
        ("r-1", run_id),
        ("r-2", None),
    ]


@pytest.mark.django_db
def test_a_request_that_starts_something_names_its_job_and_run(
    lines: list[dict[str, Any]], request_body: dict[str, Any], unreachable_broker: None
) -> None:
    answer = Client().post(
        "/v1/sandboxes",
        json.dumps(request_body),
        content_type="application/json",
        headers={"x-request-id": "r-3"},
    )
    assert answer.status_code == 502
    failed = next(line for line in lines if line["event"] == "job_publish_failed")
    answered = next(line for line in lines if line["event"] == "request_answered")
    assert failed["request_id"] == answered["request_id"] == "r-3"
    assert answered["job_id"] == failed["job_id"]
    assert answered["run_id"]
    assert structlog.contextvars.get_contextvars() == {}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("command", ["buildworker", "runworker"])
def test_every_line_of_a_worker_names_it(tmp_path: Path, command: str) -> None:
    # Without its broker a worker has more to say, from more threads.
    worker = CommandProcess(
        tmp_path / "log",
        command,
        RABBITMQ_URL="amqp://nobody:nothing@127.0.0.1:1/",
        WORKER_HEARTBEAT_INTERVAL_MS="300",
        WORKER_SWEEP_INTERVAL_MS="200",
    )
    try:
        eventually(lambda: worker.told.count("broker_lost") > 1, "the worker looks for its broker")
    finally:
        assert worker.stop() == 0, worker.told
    told = lines_of(worker.told)
    assert {"worker_started", "broker_lost", "worker_stopped"} <= {line["event"] for line in told}
    (worker_id,) = {line.get("worker_id") for line in told}
    assert re.fullmatch(rf".+-{worker.process.pid}-[0-9a-f]{{8}}", worker_id or "")


@pytest.mark.slow
def test_every_line_of_the_gateway_names_it(tmp_path: Path) -> None:
    port = free_port()
    output = tmp_path / "log"
    with output.open("wb") as file:
        gateway = subprocess.Popen(
            [sys.executable, "manage.py", "sshgateway"],
            cwd=ROOT,
            env={
                **os.environ,
                "SVC_SSH_PORT": str(port),
                "SVC_DATA_DIR": str(tmp_path),
                "WORKSPACE_SSH_GATEWAY_TOKEN": "t" * 64,
                "SSH_GATEWAY_DRAIN_MS": "0",
                "SVC_LOG_FORMAT": "json",
            },
            stderr=file,
        )
    try:
        eventually(lambda: b"gateway_started" in output.read_bytes(), "the gateway listens")
    finally:
        gateway.send_signal(signal.SIGTERM)
        gateway.wait(LONG_WAIT)
    told = lines_of(output.read_text())
    assert {"gateway_started", "gateway_stopped"} <= {line["event"] for line in told}
    (gateway_id,) = {line.get("gateway_id") for line in told}
    assert f"-{gateway.pid}-" in str(gateway_id)


@pytest.mark.slow
def test_the_http_server_speaks_as_the_rest_does(tmp_path: Path) -> None:
    port = free_port()
    output = tmp_path / "log"
    with output.open("wb") as file:
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
            env={
                **os.environ,
                "SVC_API_PORT": str(port),
                "SVC_API_WORKERS": "1",
                "SVC_WEB_PORT": "0",
                "SVC_LOG_FORMAT": "json",
            },
            stderr=file,
        )

    def answers() -> bool:
        try:
            url = f"http://127.0.0.1:{port}/healthz"
            return requests.get(url, headers={"x-request-id": "r-9"}, timeout=LONG_WAIT).ok
        except requests.RequestException:
            return False

    try:
        eventually(answers, "the API answers")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(LONG_WAIT)
    told = lines_of(output.read_text())
    assert any(line["event"].startswith("Starting gunicorn") for line in told)
    answered = [line for line in told if line["event"] == "request_answered"]
    assert {line["request_id"] for line in answered} == {"r-9"}


def test_the_lines_of_the_proxy_name_it(tmp_path: Path) -> None:
    proxy = subprocess.Popen(
        [sys.executable, "manage.py", "engineproxy", "--listen", str(tmp_path / "proxy.sock")],
        cwd=ROOT,
        env={**os.environ, "SVC_LOG_FORMAT": "json"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert proxy.stderr is not None
    try:
        opened = json.loads(proxy.stderr.readline())
    finally:
        proxy.terminate()
        proxy.communicate(timeout=WAIT_SECONDS)
    assert opened["event"] == "engine_proxy_started"
    assert opened["engine_proxy_id"].startswith(f"{socket.gethostname()}-{proxy.pid}-")
