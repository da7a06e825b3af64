"""The whole service for its clients: the API on a port, a build worker and a run worker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import override_settings

from controlplane_client import Client, Workspace
from tests.clients.places import SVC, Svc, python_path
from tests.conftest import OWNER
from tests.e2e.conftest import git_server, stack, transactional_db
from tests.stack.free_ports import free_port
from tests.stack.gateway_process import ApiProcess
from tests.stack.run_worker_process import RunWorkerProcess
from tests.stack.service import HARNESS, Stack
from tests.stack.worker_process import environment
from tests.support.waiting import LONG_WAIT

__all__ = ["git_server", "stack", "transactional_db"]

PREVIEW_TOKEN = "the-gateway-of-clients"


@pytest.fixture(scope="module")
def preview_port() -> int:
    """Where links to previews lead; a gateway is there if a module starts one."""
    return free_port()


@pytest.fixture(scope="module")
def api_process(
    stack: Stack, run_queue: str, preview_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProcess]:
    """The API as it is served, with somebody behind it who sees to runs."""
    folder = tmp_path_factory.mktemp("clients")
    with override_settings(WORKSPACE_RUN_QUEUE=run_queue):
        worker = RunWorkerProcess(folder / "run-worker.log", RUN_STOP_GRACE_MS="5000")
        try:
            # Links to previews are made by who has a gateway.
            api = ApiProcess(
                folder / "api.log",
                WORKSPACE_SSH_GATEWAY_TOKEN=PREVIEW_TOKEN,
                SVC_PREVIEW_PORT=str(preview_port),
            )
            try:
                yield api
            finally:
                api.stop()
        finally:
            worker.stop()


@pytest.fixture(scope="module")
def client(api_process: ApiProcess) -> Iterator[Client]:
    """A client of the service."""
    with Client(api_process.url, OWNER) as made:
        yield made


@pytest.fixture(scope="module")
def workspace(client: Client) -> Workspace:
    """A workspace that is ready, for all tests of a module."""
    return client.create(HARNESS, repository="tests/clients", timeout=LONG_WAIT)


@pytest.fixture(scope="module")
def svc_environ(
    api_process: ApiProcess, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What ``svc`` finds in its environment."""
    home = tmp_path_factory.mktemp("home")
    return environment(
        PYTHONPATH=python_path(),
        HOME=str(home),
        XDG_CONFIG_HOME=str(home / "config"),
        SVC_BASE_URL=api_process.url,
        SVC_OWNER_USER_ID=OWNER,
        LC_ALL="C.UTF-8",
    )


@pytest.fixture
def svc(svc_environ: dict[str, str]) -> Svc:
    """Call ``svc`` and return what came of it."""

    def call(
        *words: str,
        code: int = 0,
        stdin: str | None = None,
        cwd: Path | None = None,
        **changes: str,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*SVC, *words],
            cwd=cwd,
            env=svc_environ | changes,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=LONG_WAIT,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return call
