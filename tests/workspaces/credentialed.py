"""Workspaces with credentials in real containers, and what their programs see."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

from tests.runs.agent.credentialed import ALL, document
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import Launcher
from workspaces.runtimes.base import LaunchedRuntime, LaunchRequest

WAIT_SECONDS = LONG_WAIT


def wanting(launcher: Launcher, *accounts: dict[str, str], **changes: Any) -> LaunchRequest:
    """A request for a workspace with these accounts."""
    boot = {"credentials": True} | changes.pop("boot", {})
    values = {"credentials": lambda: document(*(accounts or ALL))} | changes
    return launcher.request(boot=boot, **values)


def environment(launcher: Launcher, runtime: LaunchedRuntime, name: str) -> dict[str, str]:
    """What a step wrote with ``env -0`` into the working directory."""
    code, output = launcher.inside(runtime, "cat", f"/workspace/repo/{name}")
    assert code == 0, output
    return dict(entry.split("=", 1) for entry in output.rstrip("\0").split("\0"))


def in_run(launcher: Launcher, run_id: UUID, script: str, number: int = 1) -> str:
    """The output of a one-shot run, as the workspace's user would see it."""
    marker = f"/workspace/repo/out-{number}"
    spec = {
        "version": 1,
        "runId": str(UUID(int=number)),
        "argv": ["/bin/sh", "-c", f"{{ {script}; }} > {marker}.new 2>&1; mv {marker}.new {marker}"],
        "cwd": None,
        "env": {},
        "stdin": None,
        "timeSeconds": int(WAIT_SECONDS),
        "graceSeconds": 2,
        "secrets": [],
        "record": {
            "policy": "block",
            "input": "masked",
            "spoolBytes": 1 << 26,
            "segmentBytes": 1 << 23,
            "files": False,
            "network": False,
            "processes": False,
            "patchBytes": 1 << 18,
            "maxFiles": 100,
        },
    }
    stdin = json.dumps(spec).encode()
    answer = launcher.adapter.call_agent(run_id, ["exec"], stdin=stdin, timeout=WAIT_SECONDS)
    assert answer.exit_code == 0, answer
    container = launcher.client.containers.get(f"svc-{run_id}")

    def there() -> bool:
        return int(container.exec_run(["test", "-e", marker]).exit_code or 0) == 0

    until(there)
    return cast("bytes", container.exec_run(["cat", marker]).output).decode()


def until(condition: Callable[[], object]) -> None:
    """Wait for something that happens in a container."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
