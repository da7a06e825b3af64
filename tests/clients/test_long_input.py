"""More input than may wait for a program: it gets all of it, whenever it reads, if it does."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from controlplane_client import AsyncClient, Client, ExecResult, Problem, Workspace
from tests.clients.places import SVC, Svc
from tests.conftest import OWNER
from tests.stack.gateway_process import ApiProcess
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker

TOO_MUCH = 9 * 1024 * 1024
"""More than the service, the agent and a pipe keep of what a program does not read."""


class Watched(httpx.HTTPTransport):
    """The network, with a look at what is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = threading.Event()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if answer.status_code == 503:
            self.refused.set()
        return answer


class AsyncWatched(httpx.AsyncHTTPTransport):
    """The same for asyncio."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = threading.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        if answer.status_code == 503:
            self.refused.set()
        return answer


def in_a_thread(
    url: str, workspace_id: str, script: str, content: bytes, refused: Callable[[], None]
) -> ExecResult:
    """Execute a script with the client for threads; tell when its input was refused."""
    transport, ended = Watched(), threading.Event()

    def look() -> None:
        if transport.refused.wait(LONG_WAIT) and not ended.is_set():
            refused()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        with Client(url, OWNER, retries=0, transport=transport) as client:
            return client.connect(workspace_id).exec(script, stdin=content)
    finally:
        ended.set()
        transport.refused.set()
        looking.join()


def in_a_loop(
    url: str, workspace_id: str, script: str, content: bytes, refused: Callable[[], None]
) -> ExecResult:
    """Execute it with the client for asyncio."""

    async def work() -> ExecResult:
        transport = AsyncWatched()
        async with AsyncClient(url, OWNER, retries=0, transport=transport) as client:
            there = await client.connect(workspace_id)
            executing = asyncio.create_task(there.exec(script, stdin=content))
            looking = asyncio.create_task(asyncio.to_thread(transport.refused.wait, LONG_WAIT))
            await asyncio.wait({executing, looking}, return_when=asyncio.FIRST_COMPLETED)
            if not executing.done():
                await asyncio.to_thread(refused)
            transport.refused.set()
            await looking
            return await executing

    return asyncio.run(work())


Execute = Callable[[str, str, str, bytes, Callable[[], None]], ExecResult]
each_client = pytest.mark.parametrize("execute", [in_a_thread, in_a_loop])


@each_client
def test_input_waits_for_a_program_that_reads_it_later(
    api_process: ApiProcess, workspace: Workspace, execute: Execute
) -> None:
    content, begin = os.urandom(TOO_MUCH), f"/tmp/{uuid.uuid4().hex}"
    script = f"until [ -e {begin} ]; do sleep 0.1; done; sha256sum"
    refusals: list[str] = []

    def refused() -> None:
        refusals.append("input-full")
        workspace.files.write(begin, b"")

    result = execute(api_process.url, workspace.id, script, content, refused)
    assert refusals == ["input-full"]
    assert result.stdout.split()[0] == hashlib.sha256(content).hexdigest()


@each_client
def test_input_that_a_program_leaves_is_no_failure_of_it(
    api_process: ApiProcess, workspace: Workspace, execute: Execute
) -> None:
    content = b"x" * TOO_MUCH
    result = execute(api_process.url, workspace.id, "head -c 10", content, lambda: None)
    assert (result.exit_code, result.stdout) == (0, "x" * 10)


def test_who_does_not_wait_is_told_that_the_program_does_not_read(workspace: Workspace) -> None:
    run = workspace.spawn(["sleep", "600"], stdin=True)
    with pytest.raises(Problem) as caught:
        run.write(b"x" * TOO_MUCH, timeout=0)
    assert (caught.value.code, caught.value.retry_after) == ("input-full", 1)
    run.cancel()
    assert run.wait().status == "cancelled"


def test_a_command_that_reads_late_gets_all_of_the_standard_input(
    api_process: ApiProcess, svc_environ: dict[str, str], workspace: Workspace, tmp_path: Path
) -> None:
    content, begin = os.urandom(TOO_MUCH), f"/tmp/{uuid.uuid4().hex}"
    (tmp_path / "given").write_bytes(content)
    script = f"until [ -e {begin} ]; do sleep 0.1; done; sha256sum"
    full = '/input", "status": 503'
    before = api_process.told.count(full)
    with (tmp_path / "given").open("rb") as given:
        process = subprocess.Popen(
            [*SVC, "exec", "-i", workspace.id, script],
            env=svc_environ,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        # More often than any other request is repeated.
        eventually(lambda: api_process.told.count(full) > before + 7, what="it asks on and on")
        workspace.files.write(begin, b"")
        out, err = process.communicate(timeout=LONG_WAIT)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out.split()[0] == hashlib.sha256(content).hexdigest()


def test_a_command_that_leaves_its_standard_input_ends_as_it_would(
    svc: Svc, workspace: Workspace
) -> None:
    done = svc("exec", "-i", workspace.id, "head -c 10; exit 3", stdin="x" * TOO_MUCH, code=3)
    assert (done.stdout, done.stderr) == ("x" * 10, "")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_standard_input_that_cannot_be_read_ends_svc_and_says_so(
    client: Client,
    svc_environ: dict[str, str],
    workspace: Workspace,
    tmp_path: Path,
    options: list[str],
) -> None:
    with (tmp_path / "written").open("wb") as only_written:
        done = subprocess.run(
            [*SVC, "exec", *options, "-i", workspace.id, "cat"],
            env=svc_environ,
            stdin=only_written,
            capture_output=True,
            text=True,
            timeout=LONG_WAIT,
            check=False,
        )
    goes_on = next(workspace.runs()).id
    client.run(goes_on).cancel()
    assert (done.returncode, done.stdout) == (125, "")
    *hints, told = done.stderr.splitlines()
    assert told == "svc: Bad file descriptor"
    assert [f"svc cancel {goes_on}" in hint for hint in hints] == ([] if options else [True])


def test_without_a_standard_input_nothing_is_started(
    svc_environ: dict[str, str], workspace: Workspace
) -> None:
    before = next(workspace.runs(), None)
    words = [*SVC, "exec", "-i", workspace.id, "cat"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *words],
        env=svc_environ,
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=False,
    )
    said = "Error: there is no standard input to pass\n"
    assert (done.returncode, done.stdout, done.stderr) == (125, "", said)
    after = next(workspace.runs(), None)
    assert (after and after.id) == (before and before.id)
