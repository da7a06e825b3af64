"""Execs that a real gunicorn has waiting: they take no thread, and survive its end as runs."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from pytest_django.fixtures import Settings

from controlplane.work import amqp
from runs.models import Run
from runs.run_messages import RUN_REQUESTED
from tests.runs.ready import ready_attempt
from tests.runs.record_factory import record
from tests.stack.api_process import ApiProcess, api_process
from tests.stack.worker_process import eventually

pytestmark = pytest.mark.django_db(transaction=True)

NUMBER = 50


@pytest.fixture(autouse=True)
def run_queue(settings: Settings, instance_id: str) -> Iterator[None]:
    """Give the test a run queue of its own."""
    settings.WORKSPACE_RUN_QUEUE = f"runs-{instance_id}-{uuid.uuid4().hex[:8]}"
    topology = RUN_REQUESTED.topology()
    yield
    amqp.purge_and_delete(settings.RABBITMQ_URL, topology, timeout=60)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiProcess]:
    with api_process(tmp_path / "api.log", SVC_API_THREADS="4") as served:
        yield served


def waiting() -> list[Run]:
    """The runs of execs that have not ended."""
    return list(Run.objects.filter(mode=Run.Mode.ONE_SHOT, status=Run.Status.QUEUED))


def execute(api: ApiProcess, path: str, number: int) -> Any:
    """Ask for an exec and return the answer's body."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=120)
    try:
        body = json.dumps({"command": ["echo", str(number)]})
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return json.loads(content)
    finally:
        connection.close()
        connections.close_all()


def ask(pool: ThreadPoolExecutor, api: ApiProcess) -> list[Future[Any]]:
    """Ask for fifty execs at once, and wait until their runs are there."""
    path = f"/v1/workspaces/{ready_attempt().workspace_id}/exec"
    futures = [pool.submit(execute, api, path, number) for number in range(NUMBER)]
    eventually(lambda: len(waiting()) == NUMBER, what="all runs are there", timeout=120)
    return futures


def test_fifty_that_are_waited_for_keep_nobody_else_waiting(api: ApiProcess) -> None:
    with ThreadPoolExecutor(NUMBER) as pool:
        futures = ask(pool, api)
        assert api.get("/healthz")[0] == 200
        told = {}
        for run in waiting():
            assert run.command is not None
            number = int(run.command["args"][0])
            told[number] = str(run.pk)
            record(run, [b"%d" % number], code=number)
        answers = [future.result(120) for future in futures]
    assert [answer["stdout"] for answer in answers] == [str(each) for each in range(NUMBER)]
    assert [answer["runId"] for answer in answers] == [told[each] for each in range(NUMBER)]
    assert [answer["exitCode"] for answer in answers] == list(range(NUMBER))


def test_those_that_are_waited_for_when_it_ends_are_told_that_they_go_on(api: ApiProcess) -> None:
    with ThreadPoolExecutor(NUMBER) as pool:
        futures = ask(pool, api)
        assert api.get("/healthz")[0] == 200
        api.stop()
        answers = [future.result(120) for future in futures]
    assert {answer["status"] for answer in answers} == {"queued"}
    assert {answer["runId"] for answer in answers} == {str(run.pk) for run in waiting()}
