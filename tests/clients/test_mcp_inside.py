"""``svc mcp --inside``: the programs of a workspace without a network drive other workspaces."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane_client import Client, Run, Workspace
from runs.commands import harness_command
from tests.clients.places import SVC, Svc
from tests.stack.service import HARNESS, Stack
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT
from workspaces.harnesses import CODEX

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = Path(__file__).with_name("scripted_model.py")
NO_NETWORK = {**HARNESS, "runtime": {"network": {"outbound": False}}}
TOOLS = "mcp__workspaces"
LIST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})


@pytest.fixture(scope="module")
def driver(client: Client) -> Workspace:
    """A workspace that reaches nothing."""
    return client.create(NO_NETWORK, repository="tests/driver", timeout=LONG_WAIT)


@contextmanager
def inside(environ: dict[str, str], workspace: Workspace) -> Iterator[subprocess.Popen[str]]:
    """Serve the tools in a workspace, until ctrl-C."""
    process = subprocess.Popen(
        [*SVC, "mcp", "--inside", workspace.id],
        env=environ,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line == f"serving http://127.0.0.1:8765/mcp inside {workspace.id}\n", line
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG_WAIT) in {0, -signal.SIGINT, 130}
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The real program, which needs no other one, as a tar."""
    folder = tmp_path_factory.mktemp("codex")
    options = ("--no-fund", "--no-audit", "--silent", "--prefer-offline", "--ignore-scripts")
    command = ["npm", "install", *options, *CODEX.npm_packages]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    pattern = "node_modules/@openai/codex-linux-*/vendor/*/bin/codex"
    (program,) = folder.glob(pattern)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(program, "codex")
    return packed.getvalue()


def serving_model(workspace: Workspace, calls: list[object]) -> Run:
    """Start the model's API in a workspace; return its run once it listens."""
    workspace.files.write("/tmp/model.py", MODEL.read_text())
    run = workspace.spawn(["python3", "/tmp/model.py", "9000", json.dumps(calls)])
    eventually(lambda: run.scrollback() == b"listening\n", what="the model listens")
    return run


def test_a_harness_without_a_network_drives_another_workspace(
    stack: Stack,
    svc_environ: dict[str, str],
    driver: Workspace,
    workspace: Workspace,
    client: Client,
    codex: bytes,
) -> None:
    (boot,) = driver.runs(mode="boot")
    stack.engine.containers.get(f"svc-{boot.id}").put_archive("/usr/local/bin", codex)
    config = '[mcp_servers.workspaces]\nurl = "http://127.0.0.1:8765/mcp"\n'
    driver.files.write("/home/workspace/.codex/config.toml", config)
    there = {"workspace": workspace.id}
    calls: list[object] = [
        [TOOLS, "write_file", {**there, "path": "/tmp/sum.py", "content": "print(6 * 7)\n"}],
        [TOOLS, "execute", {**there, "command": ["python3", "/tmp/sum.py"]}],
    ]
    model = serving_model(driver, calls)
    with inside(svc_environ, driver):
        done = driver.exec(
            harness_command("codex", "Have it computed over there.", None),
            env={"OPENAI_BASE_URL": "http://127.0.0.1:9000/v1", "CODEX_API_KEY": "key"},
            timeout=LONG_WAIT,
        )
        assert done.exit_code == 0, done.stdout + done.stderr
        assert "42" in done.stdout
    model.cancel()

    # It happened over there, and is in the record of there.
    there_run = next(run for run in workspace.runs() if run.command == ["python3", "/tmp/sum.py"])
    assert client.run(there_run.id).scrollback() == b"42\n"
    # Here is what was asked for, and the way is closed.
    relay = next(run for run in driver.runs() if (run.command or [""])[-1] == "8765")
    asked = client.run(relay.id).scrollback("stdout")
    assert b'"method":"tools/call"' in asked
    assert client.run(relay.id).wait().status in {"cancelled", "completed"}
    assert driver.exec("curl -s http://127.0.0.1:8765/mcp").exit_code == 7


def test_many_programs_of_the_workspace_use_it_at_once(
    svc_environ: dict[str, str], driver: Workspace
) -> None:
    headers = "-H 'accept: application/json, text/event-stream' -H 'content-type: application/json'"
    ask = f"curl -s http://127.0.0.1:8765/mcp {headers} -d '{LIST}' | grep -o show_record | head -1"
    with inside(svc_environ, driver):
        done = driver.exec(f"seq 20 | xargs -P 20 -I N sh -c {json.dumps(ask)}".replace("$", "\\$"))
        assert done.stdout.split() == ["show_record"] * 20, done.stderr
        page = driver.exec(
            f"curl -s -o /dev/null -w '%{{http_code}}' {headers} -H 'origin: "
            f"https://elsewhere.example' -d '{LIST}' http://127.0.0.1:8765/mcp"
        )
        assert page.stdout == "403"
        twice = subprocess.run(
            [*SVC, "mcp", "--inside", driver.id],
            env=svc_environ,
            capture_output=True,
            text=True,
            timeout=LONG_WAIT,
            check=False,
        )
        assert twice.returncode == 1
        assert "port 8765 of the workspace cannot be served: " in twice.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--inside", "nowhere"], 1, "no workspace nowhere"),
        (["--inside", "nowhere", "--http", "0.0.0.0:1"], 2, "127.0.0.1:PORT"),
        (["--inside", "nowhere", "--http", "127.0.0.1:0"], 2, "127.0.0.1:PORT"),
    ],
    ids=lambda value: str(value),
)
def test_what_cannot_be_served_inside_is_said(
    svc: Svc, words: list[str], code: int, told: str
) -> None:
    assert told in svc("mcp", *words, code=code).stderr
