"""Two of each process behind a plain load balancer; one of each is killed under load."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from runs.models import Run
from tests.conftest import OWNER
from tests.runs.streaming.event_stream import Follower, Received
from tests.stack.gateway_process import ApiProcess, GatewayProcess, known_host
from tests.stack.load_balancer import API, SSH, load_balancer
from tests.stack.run_worker_process import RunWorkerProcess
from tests.stack.runs import FINAL, GATEWAY_TOKEN
from tests.stack.service import Stack, Started
from tests.stack.ssh import Client, short_folder
from tests.stack.worker_process import CommandProcess, eventually
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.docker, pytest.mark.slow]

CALLERS = 4
CALLS = 5
LINES = 300
TRIES = 600
PAUSE_SECONDS = 0.5
"""How long a client waits before it tries again."""
SESSIONS = 4


@dataclass
class Behind:
    """What is behind the load balancer, and a workspace to use it with."""

    apis: list[ApiProcess]
    gateways: list[GatewayProcess]
    workers: list[RunWorkerProcess]
    api: int
    ssh: int
    started: Started
    folder: Path

    @property
    def workspace_id(self) -> str:
        """The workspace's id."""
        return str(self.started.answer["workspaceId"])

    def call(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        """Call the API as a client does that tries again: a key makes that harmless."""
        headers = {"content-type": "application/json", "connection": "close"}
        if key:
            headers["idempotency-key"] = key
        told = ""
        for _ in range(TRIES):
            connection = HTTPConnection("127.0.0.1", self.api, timeout=LONG_WAIT)
            with contextlib.closing(connection):
                try:
                    content = None if body is None else json.dumps(body)
                    connection.request(method, path, content, headers)
                    answer = connection.getresponse()
                    told = answer.read().decode()
                except (OSError, HTTPException) as error:
                    told = repr(error)
                    time.sleep(PAUSE_SECONDS)
                    continue
            assert answer.status < 400, told
            return json.loads(told)
        raise AssertionError(f"no answer in {TRIES} tries: {told}")

    def client(self, folder: Path) -> Client:
        """Return somebody who may enter."""
        made = Client(
            folder,
            port=self.ssh,
            known_host=known_host(self.gateways[0].host_key, self.ssh),
            user=f"ws-{self.workspace_id}",
        )
        body = {"ownerUserId": OWNER, "publicKey": made.public_key}
        self.call("POST", "/v1/ssh-keys", body)
        return made


def kill(process: ApiProcess | CommandProcess) -> None:
    """Kill a process with all that it started."""
    os.killpg(process.process.pid, signal.SIGKILL)
    process.process.wait()


@pytest.fixture(scope="module")
def behind(
    stack: Stack, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Behind]:
    """Two of each, in front of them haproxy, and a ready workspace."""
    folder = tmp_path_factory.mktemp("behind")
    token = {"WORKSPACE_SSH_GATEWAY_TOKEN": GATEWAY_TOKEN}
    with contextlib.ExitStack() as ended:
        ended.enter_context(override_settings(WORKSPACE_RUN_QUEUE=run_queue, **token))
        started = stack.ready({})
        apis = [ApiProcess(folder / f"api-{number}.log", **token) for number in range(2)]
        workers = [RunWorkerProcess(folder / f"worker-{number}.log") for number in range(2)]
        key = folder / "ssh" / "key"
        for api in apis:
            ended.callback(api.stop)
        for worker in workers:
            ended.callback(worker.stop)
        ports = [each.port for each in apis]
        api_port = ended.enter_context(load_balancer(folder, API, ports))
        gateways: list[GatewayProcess] = []
        for number in range(2):
            # The second one reads the host key that the first has made.
            log = folder / f"gateway-{number}.log"
            url = f"http://127.0.0.1:{api_port}"
            gateways.append(GatewayProcess(log, api=url, host_key=key, **token))
            ended.callback(gateways[-1].stop)
        ports = [each.port for each in gateways]
        ssh = ended.enter_context(load_balancer(folder, SSH, ports))
        yield Behind(apis, gateways, workers, api_port, ssh, started, folder)


def test_an_api_and_a_run_worker_that_are_killed_under_load_lose_nothing(behind: Behind) -> None:
    writes = f"for n in $(seq {LINES}); do echo line-$n; sleep 0.02; done"
    body = {"command": writes, "background": True, "ownerUserId": OWNER}
    run_id = behind.call(
        "POST", f"/v1/workspaces/{behind.workspace_id}/exec", body, uuid.uuid4().hex
    )["runId"]
    half = threading.Event()
    events: list[Received] = []

    def follow() -> None:
        last_id = ""
        for _ in range(TRIES):
            try:
                path = f"/v1/runs/{run_id}/stream"
                with Follower(behind.api, path, last_id=last_id) as follower:
                    for event in follower.events():
                        events.append(event)
                        last_id = event.id
                        if len(events) > LINES // 10:
                            half.set()
                        if event.event == "end":
                            return
            except OSError:
                pass
            time.sleep(PAUSE_SECONDS)  # its server was killed

    def execute(number: int) -> list[Any]:
        path = f"/v1/workspaces/{behind.workspace_id}/exec"
        asked = [
            {"command": f"echo {number}-{call} | tee -a /tmp/called", "ownerUserId": OWNER}
            for call in range(CALLS)
        ]
        return [behind.call("POST", path, each, uuid.uuid4().hex) for each in asked]

    with ThreadPoolExecutor(CALLERS + 1) as pool:
        following = pool.submit(follow)
        assert half.wait(LONG_WAIT)
        calling = [pool.submit(execute, number) for number in range(CALLERS)]
        kill(behind.apis[0])
        kill(behind.workers[0])
        answers = [answer for each in calling for answer in each.result(LONG_WAIT)]
        following.result(LONG_WAIT)

    def ended() -> bool:
        ids = [run_id, *(answer["runId"] for answer in answers)]
        return Run.objects.filter(pk__in=ids, status__in=FINAL).count() == len(ids)

    eventually(ended, what="every run has ended")
    expected = sorted(f"{number}-{call}" for number in range(CALLERS) for call in range(CALLS))
    listed = {"command": "cat /tmp/called", "ownerUserId": OWNER}
    path = f"/v1/workspaces/{behind.workspace_id}/exec"
    called = behind.call("POST", path, listed, uuid.uuid4().hex)["stdout"].split()
    assert sorted(called) == expected
    numbers = [int(event.id) for event in events if event.event != "end"]
    assert numbers == list(range(1, len(numbers) + 1))
    output = b"".join(
        base64.b64decode(event.json["contentBase64"]) for event in events if event.event == "output"
    )
    assert output.decode().split() == [f"line-{number + 1}" for number in range(LINES)]


def test_a_gateway_that_is_killed_takes_only_its_own_sessions_along(behind: Behind) -> None:
    with contextlib.ExitStack() as ended:
        client = behind.client(ended.enter_context(short_folder()))
        begun = [
            ended.enter_context(client.begun("echo in; while read line; do echo $line; done"))
            for _ in range(SESSIONS)
        ]
        kill(behind.gateways[0])
        gone = [each for each in begun if _answers(each.process) is None]
        # In turns, unless one of them has answered the load balancer late.
        assert 0 < len(gone) < SESSIONS
        for each in begun:
            if each not in gone:
                assert _answers(each.process) == b"still there\n"
        assert client.said("echo again") == b"again\n"
        for each in begun:
            assert each.process.stdin is not None
            each.process.stdin.close()
    runs = Run.objects.filter(
        mode=Run.Mode.INTERACTIVE, attempt_id=behind.started.answer["attemptId"]
    )
    eventually(
        lambda: runs.count() == SESSIONS + 1 and not runs.exclude(status__in=FINAL).exists(),
        what="the record of every session has ended",
    )


def _answers(process: Any) -> bytes | None:
    """Return what a session echoes; None when it has ended."""
    try:
        process.stdin.write(b"still there\n")
    except BrokenPipeError:
        return None
    return process.stdout.readline() or None
