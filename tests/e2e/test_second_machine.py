"""A second machine, as docs/operators/second-machine.md adds it: used, drained, cut off, lost."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connections
from django.test import override_settings

from runs.exec.waiting import stop_listening
from tests.conftest import OWNER
from tests.stack.gateway_process import ApiProcess, GatewayProcess
from tests.stack.run_worker_process import QUICK, RunWorkerProcess
from tests.stack.runs import GATEWAY_TOKEN
from tests.stack.second_machine import SecondMachine, carry_image, second_machine
from tests.stack.service import Stack, Started, remove_all
from tests.stack.ssh import Client, short_folder
from tests.stack.worker_process import (
    ROOT,
    CommandProcess,
    WorkerProcess,
    environment,
    eventually,
)
from tests.support.waiting import BUILD_WAIT, LONG_WAIT
from workspaces.models import Engine, RuntimeInstance

# The machines are set up, and an image is built, within the first test's time.
pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(2 * BUILD_WAIT)]

PAGE = ROOT / "docs" / "operators" / "second-machine.md"
PERSISTENT = {"runtime": {"persistence": "persistent"}}
TIMES = {
    "WORKER_HEARTBEAT_INTERVAL_MS": "500",
    "WORKER_HEARTBEAT_STALE_MS": "5000",
    "WORKER_SWEEP_INTERVAL_MS": "500",
    "WORKER_RECONCILE_INTERVAL_MS": "1000",
    "WORKSPACE_STOP_GRACE_MS": "1000",
    "DOCKER_TIMEOUT_MS": "10000",
}
STALE_MS = 5000


@dataclass
class TwoMachines:
    """The service on the first machine, and an engine on the second."""

    stack: Stack
    machine: SecondMachine
    folder: Path
    processes: list[CommandProcess] = field(default_factory=list)

    def typed(self, beginning: str) -> str:
        """Type the command of the page that begins so; return what it printed."""
        (command,) = {line for line in commands() if line.startswith(f"python {beginning}")}
        for written, real in (
            ("10.0.0.2", self.machine.address),
            ("second-certificates", str(self.folder / "second-certificates")),
        ):
            command = command.replace(written, real)
        done = subprocess.run(
            [".venv/bin/python", *shlex.split(command)[1:]],
            cwd=ROOT,
            env=environment(**self.settings),
            capture_output=True,
            text=True,
            timeout=BUILD_WAIT,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def settings(self) -> dict[str, str]:
        """The settings of all processes."""
        return {**TIMES, "SVC_DATA_DIR": str(self.folder / "data")}

    def start_workers(self) -> None:
        """Start the workers of the first engine, and what starts those of engines to be added."""
        logs = self.folder
        self.processes.append(WorkerProcess(logs / "build.log", max_jobs=None, **self.settings))
        self.processes.append(RunWorkerProcess(logs / "run.log", max_runs=None, **self.settings))
        assert "python manage.py engineworkers" in commands()
        keeper = CommandProcess(logs / "keeper.log", "engineworkers", **QUICK | self.settings)
        self.processes.append(keeper)

    def start_engine(self) -> None:
        """Start the second machine's engine with the page's daemon.json."""
        text = PAGE.read_text().partition("```json\n")[2].partition("```")[0]
        for written, real in (
            ("10.0.0.2", self.machine.address),
            ("/var/run/docker.sock", f"{self.machine.root}/docker.sock"),
            ("/etc/docker/certificates", str(self.folder / "second-certificates" / "server")),
        ):
            text = text.replace(written, real)
        self.machine.start_engine(json.loads(text))

    def there(self) -> set[str]:
        """Return the names of the containers that run on the second machine."""
        with contextlib.closing(self.machine.client()) as client:
            return {str(each.name) for each in client.containers.list()}

    def workspace(self, started: Started) -> Any:
        """Read a workspace."""
        return self.stack.api.get(f"/v1/workspaces/{started.answer['workspaceId']}").body

    def reason(self, started: Started) -> str | None:
        """Return the code of a workspace's reason."""
        code: str | None = (self.workspace(started).get("reason") or {}).get("code")
        return code

    def act(self, started: Started, action: str, **body: Any) -> Any:
        """Have a workspace started or stopped."""
        path = f"/v1/workspaces/{started.answer['workspaceId']}/{action}"
        return self.stack.api.post(path, {"ownerUserId": OWNER, **body}, expect=202).body

    def stopped(self, started: Started) -> None:
        """Stop a workspace and wait for it."""
        self.act(started, "stop")
        eventually(
            lambda: self.workspace(started)["status"] == "stopped",
            what="it is stopped",
            timeout=LONG_WAIT,
        )

    def ready_on_second(self, spec: dict[str, Any]) -> Started:
        """Return a workspace on the second machine: the first one is drained for its start."""
        Engine.objects.filter(pk="local").update(state="draining")
        try:
            started = self.stack.ready(spec)
        finally:
            Engine.objects.filter(pk="local").update(state="active")
        assert self.workspace(started)["engine"]["name"] == "second"
        assert f"svc-{started.answer['runId']}" in self.there()
        return started

    def close(self) -> None:
        """End the workers."""
        for process in self.processes:
            process.stop()


def commands() -> list[str]:
    """Return the commands of the page."""
    lines = PAGE.read_text().splitlines()
    return [line[2:] for line in lines if line.startswith("$ ")]


@pytest.fixture(scope="module")
def machines(
    transactional_db: None,
    instance_id: str,
    build_queue: str,
    run_queue: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TwoMachines]:
    """Both, with the workers of each engine, as the page sets them up."""
    folder = tmp_path_factory.mktemp("machines")
    changed = override_settings(
        SVC_INSTANCE_ID=instance_id,
        WORKSPACE_BUILD_QUEUE=build_queue,
        WORKSPACE_RUN_QUEUE=run_queue,
        WORKER_HEARTBEAT_STALE_MS=STALE_MS,
        SVC_DATA_DIR=folder / "data",
    )
    with changed, second_machine(os.getpid() % 250) as machine, contextlib.ExitStack() as ended:
        both = TwoMachines(None, machine, folder)  # type: ignore[arg-type]
        ended.callback(both.close)
        machine.forward(int(django_settings.REGISTRY_PUSH_REGISTRY.rpartition(":")[2]))
        both.typed("manage.py engine certificates")
        both.start_engine()
        carry_image(django_settings.DOCKER_HOST, machine, django_settings.SVC_BASE_IMAGES["debian"])
        both.start_workers()
        both.stack = Stack(both.processes[0])  # type: ignore[arg-type]
        ended.callback(both.stack.engine.close)
        ended.callback(remove_all, both.stack.engine, instance_id)
        # The second machine has no way to the mirrors: it takes the image that the first has built.
        both.stopped(both.stack.ready({}))
        both.typed("manage.py engine add")
        eventually(
            lambda: Engine.objects.filter(seen_at__isnull=False).count() == 2,
            what="both engines were heard",
            timeout=LONG_WAIT,
        )
        try:
            yield both
        except BaseException:
            for process in both.processes:
                print(process.log, process.told[-3000:])  # noqa: T201
            raise
        finally:
            stop_listening()
            connections.close_all()


def test_a_workspace_on_the_second_machine_is_used_like_any_other(machines: TwoMachines) -> None:
    started = machines.ready_on_second({})
    workspace_id = started.answer["workspaceId"]
    api = machines.stack.api
    asked = {"command": "cat; echo no >&2; exit 3", "stdin": "given"}
    ran = api.post(f"/v1/workspaces/{workspace_id}/exec", asked, expect=200).body
    assert (ran["stdout"], ran["stderr"], ran["exitCode"]) == ("given", "no\n", 3)
    listed = api.get(f"/v1/workspaces/{workspace_id}/files/list?path=/workspace").body
    assert "items" in listed
    shown = machines.typed("manage.py engine list")
    assert "second: active, answers, workspaces: 1" in shown
    machines.stopped(started)
    assert f"svc-{started.answer['runId']}" not in machines.there()


def test_people_enter_it_by_ssh(machines: TwoMachines) -> None:
    started = machines.ready_on_second({})
    token = {"WORKSPACE_SSH_GATEWAY_TOKEN": GATEWAY_TOKEN, **machines.settings}
    with contextlib.ExitStack() as ended:
        api = ApiProcess(machines.folder / "api.log", **token)
        ended.callback(api.stop)
        # The gateway has no database: it knows the engine by the folder that the API has written.
        key = machines.folder / "ssh" / "key"
        gateway = GatewayProcess(
            machines.folder / "gateway.log", api=api.url, host_key=key, **token
        )
        ended.callback(gateway.stop)
        client = Client(
            ended.enter_context(short_folder()),
            port=gateway.port,
            known_host=gateway.known_host,
            user=f"ws-{started.answer['workspaceId']}",
        )
        body = {"ownerUserId": OWNER, "publicKey": client.public_key}
        machines.stack.api.post("/v1/ssh-keys", body, expect=201)
        assert client.said("echo over two machines") == b"over two machines\n"
    machines.stopped(started)


def test_a_persistent_workspace_stays_on_its_engine_and_waits_while_that_is_drained(
    machines: TwoMachines,
) -> None:
    started = machines.ready_on_second(PERSISTENT)
    assert machines.workspace(started)["engine"] == {"name": "second", "pinned": True}
    machines.stopped(started)
    machines.typed("manage.py engine drain")
    machines.act(started, "start")
    eventually(
        lambda: machines.reason(started) == "engine-draining",
        what="it says why it waits",
        timeout=LONG_WAIT,
    )
    other = machines.stack.ready({})
    assert machines.workspace(other)["engine"] == {"name": "local", "pinned": False}
    machines.typed("manage.py engine undrain")
    eventually(
        lambda: machines.workspace(started)["status"] == "ready",
        what="it has started",
        timeout=LONG_WAIT,
    )
    assert machines.workspace(started)["engine"] == {"name": "second", "pinned": True}
    machines.stopped(started)
    machines.stopped(other)


def test_what_is_on_an_engine_that_does_not_answer_waits_and_goes_on(
    machines: TwoMachines,
) -> None:
    started = machines.ready_on_second(PERSISTENT)
    name = f"svc-{started.answer['runId']}"
    machines.machine.cut()
    try:
        eventually(
            lambda: machines.reason(started) == "engine-lost", what="it says so", timeout=LONG_WAIT
        )
        shown = machines.workspace(started)
        assert (shown["status"], shown["reason"]["engine"]) == ("ready", "second")
        other = machines.stack.ready({})
        assert machines.workspace(other)["engine"]["name"] == "local"
        assert name in machines.there()
    finally:
        machines.machine.mend()
    eventually(lambda: machines.reason(started) is None, what="it is well again", timeout=LONG_WAIT)
    machines.machine.signal_engine(signal.SIGSTOP)
    try:
        eventually(
            lambda: machines.reason(started) == "engine-lost",
            what="it says so again",
            timeout=LONG_WAIT,
        )
        machines.act(started, "stop")
        assert machines.reason(started) == "stopping"
        assert "engine-lost" in machines.workspace(started)["reason"]["message"]
    finally:
        machines.machine.signal_engine(signal.SIGCONT)
    eventually(
        lambda: machines.workspace(started)["status"] == "stopped",
        what="it is stopped",
        timeout=LONG_WAIT,
    )
    assert name not in machines.there()
    machines.stopped(other)


def test_an_engine_that_is_gone_for_good_is_forgotten_and_its_workspace_starts_elsewhere(
    machines: TwoMachines,
) -> None:
    started = machines.ready_on_second(PERSISTENT)
    machines.machine.signal_engine(signal.SIGKILL)
    eventually(
        lambda: machines.reason(started) == "engine-lost", what="it says so", timeout=LONG_WAIT
    )
    machines.typed("manage.py engine forget")
    shown = machines.workspace(started)
    assert (shown["status"], shown["error"]["code"]) == ("failed", "engine-gone")
    machines.act(started, "start")
    eventually(
        lambda: machines.workspace(started)["status"] == "ready",
        what="it has started",
        timeout=LONG_WAIT,
    )
    assert machines.workspace(started)["engine"]["name"] == "local"
    runtimes = RuntimeInstance.objects.filter(attempt__workspace=started.answer["workspaceId"])
    assert sorted(runtimes.values_list("status", "engine_name")) == [
        ("failed", ""),
        ("running", "local"),
    ]
    assert "second: gone" in machines.typed("manage.py engine list")
    data = machines.folder / "data"
    eventually(
        lambda: not (data / "engines" / "second").exists(),
        what="nothing opens it",
        timeout=LONG_WAIT,
    )
