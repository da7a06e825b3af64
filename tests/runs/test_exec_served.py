"""Execs that a real gunicorn has waiting: they take no thread, and survive its end as runs."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from pytest_django.fixtures import Settings

from controlplane.serving.connections import Connection
from controlplane.serving.framing import Incoming
from runs.models import Run
from runs.run_messages import RUN_REQUESTED
from runs.streaming.of_exec import ExecSource
from tests.runs.executable import make_executable
from tests.runs.ready import ready_attempt
from tests.runs.record_factory import record
from tests.stack.api_process import ApiProcess, api_process
from tests.stack.worker_process import eventually
from tests.support import queues
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db(transaction=True)

NUMBER = 50


@pytest.fixture(autouse=True)
def run_queue(settings: Settings, instance_id: str) -> Iterator[None]:
    """Give the test a run queue of its own."""
    settings.WORKSPACE_RUN_QUEUE = f"runs-{instance_id}-{uuid.uuid4().hex[:8]}"
    topology = RUN_REQUESTED.topology()
    yield
    queues.purge_and_delete(settings.RABBITMQ_URL, topology, timeout=LONG_WAIT)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiProcess]:
    with api_process(tmp_path / "api.log", SVC_API_THREADS="4") as served:
        yield served


def waiting() -> list[Run]:
    """The runs of execs that have not ended, in the order in which they were asked for."""
    queued = Run.objects.filter(mode=Run.Mode.ONE_SHOT, status=Run.Status.QUEUED)
    return list(queued.order_by("number"))


def execute(api: ApiProcess, path: str, number: int) -> Any:
    """Ask for an exec and return the answer's body."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=LONG_WAIT)
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
    eventually(lambda: len(waiting()) == NUMBER, what="all runs are there", timeout=LONG_WAIT)
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
        answers = [future.result(LONG_WAIT) for future in futures]
    assert [answer["stdout"] for answer in answers] == [str(each) for each in range(NUMBER)]
    assert [answer["runId"] for answer in answers] == [told[each] for each in range(NUMBER)]
    assert [answer["exitCode"] for answer in answers] == list(range(NUMBER))


def test_those_that_are_waited_for_when_it_ends_are_told_that_they_go_on(api: ApiProcess) -> None:
    with ThreadPoolExecutor(NUMBER) as pool:
        futures = ask(pool, api)
        assert api.get("/healthz")[0] == 200
        api.stop()
        answers = [future.result(LONG_WAIT) for future in futures]
    assert {answer["status"] for answer in answers} == {"queued"}
    assert {answer["runId"] for answer in answers} == {str(run.pk) for run in waiting()}


def asked(api: ApiProcess, path: str) -> socket.socket:
    """Ask for an exec with a client that takes little at a time; return it behind the head."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    client.settimeout(LONG_WAIT)
    client.connect(("127.0.0.1", api.port))
    body = json.dumps({"command": ["true"]}).encode()
    client.sendall(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    assert head.startswith(b"HTTP/1.1 200 "), head
    return client


def rest(client: socket.socket) -> bytes:
    """Return what comes until the other side ends the connection."""
    received = b""
    while data := client.recv(1 << 16):
        received += data
    return received


def test_an_answer_that_is_half_sent_when_the_server_ends_is_sent_to_its_end(
    api: ApiProcess,
) -> None:
    path = f"/v1/workspaces/{ready_attempt().workspace_id}/exec"
    with asked(api, path) as half, asked(api, path) as other:
        run = waiting()[0]
        whole = bytes(range(256)) * 4096
        record(run, [whole[at : at + 32_768] for at in range(0, len(whole), 32_768)])
        begun = half.recv(1)
        while not begun.strip():
            begun = half.recv(1)
        api.process.send_signal(signal.SIGTERM)
        # Once the other one is told, this one's turn has been.
        assert json.loads(rest(other))["status"] == "queued"
        answer = json.loads(begun + rest(half))
        assert api.stop() == 0
    assert answer["runId"] == str(run.pk)
    assert base64.b64decode(answer["stdoutBase64"]) == whole


def test_what_is_still_to_be_sent_of_an_answer_is_memory_of_its_connection() -> None:
    run = make_executable()
    record(run, [b"\x00" * 32_768] * 32)
    source = ExecSource(run)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours, ("127.0.0.1", 1), ("127.0.0.1", 2), lambda _: None)
        connection.incoming = Incoming(lambda _: 0)
        connection.sock.source = source
        assert connection.held == 0
        sent = len(source.read(1000, time.monotonic()).data)
        held = connection.held
        while (piece := source.read(1 << 16, time.monotonic())).more:
            sent += len(piece.data)
        sent += len(piece.data)
    assert held == sent - 1000 > 6_000_000
    assert connection.held == 0
