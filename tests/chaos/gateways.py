"""SSH gateways as the chaos tests run them, and the people who come through them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import requests

from tests.chaos.records import ready_workspace
from tests.stack.free_ports import free_port
from tests.stack.gateway_process import QUICK, greeting, known_host
from tests.stack.private_stack import OWNER, PrivateStack
from tests.stack.processes import Child, wait_for
from tests.stack.sandboxes import Started
from tests.stack.ssh import Client, short_folder
from tests.support.waiting import LONG_WAIT

FINAL = {"completed", "failed", "cancelled"}


@dataclass
class Gateway:
    """One gateway's process."""

    child: Child
    port: int
    host_key: Path


def start_gateway(stack: PrivateStack, **overrides: str) -> Gateway:
    """Start a gateway and wait until it takes connections. All of them have the same host key."""
    port = int(overrides.get("SVC_SSH_PORT", free_port()))
    host_key = stack.root / "gateway-key"
    child = stack.launch_worker(
        command="sshgateway",
        **QUICK
        | {
            "SVC_SSH_PORT": str(port),
            "SVC_BIND_HOST": "127.0.0.1",
            "SSH_GATEWAY_API_BASE_URL": stack.api,
            "SSH_GATEWAY_HOST_KEY_PATH": str(host_key),
        }
        | overrides,
    )

    def answers() -> bool:
        assert child.exit_code is None, child.log.read_text(errors="replace")
        return greeting(port).startswith(b"SSH-2.0-")

    wait_for(answers, "the gateway answers")
    return Gateway(child, port, host_key)


@dataclass
class Entrance:
    """A workspace, its gateway, and somebody who may enter."""

    stack: PrivateStack
    job: Started
    gateway: Gateway
    client: Client

    def runs(self) -> list[tuple[str, str]]:
        """Return id and status of the workspace's sessions, oldest first."""
        return [
            (str(run), str(status))
            for run, status in self.stack.database.rows(
                "select id, status from runs_run where workspace_id = %s and mode = 'interactive'"
                " order by number",
                self.job.workspace_id,
            )
        ]

    def run(self) -> str:
        """Return the only session's run."""
        ((run, _),) = self.runs()
        return run

    def wait_running(self) -> str:
        """Wait until the only session is announced as running; return its run."""
        wait_for(lambda: [status for _, status in self.runs()] == ["running"], "a session runs")
        return self.run()

    def through(self, gateway: Gateway, folder: Path) -> Client:
        """Return somebody with a key who comes through this gateway."""
        return somebody(self.stack, self.job, gateway, folder)


def somebody(stack: PrivateStack, job: Started, gateway: Gateway, folder: Path) -> Client:
    """Return a client with a registered key."""
    client = Client(
        folder,
        port=gateway.port,
        known_host=known_host(gateway.host_key, gateway.port),
        user=f"ws-{job.workspace_id}",
    )
    answer = requests.post(
        f"{stack.api}/v1/ssh-keys",
        json={"ownerUserId": OWNER, "publicKey": client.public_key},
        timeout=LONG_WAIT,
    )
    assert answer.status_code == 201, answer.text
    return client


@contextlib.contextmanager
def entrance_of(stack: PrivateStack, **overrides: str) -> Iterator[Entrance]:
    """A ready workspace behind a gateway, and a client; nothing records runs yet."""
    job = ready_workspace(stack)
    gateway = start_gateway(stack, **overrides)
    with short_folder() as folder:
        yield Entrance(stack, job, gateway, somebody(stack, job, gateway, folder))
