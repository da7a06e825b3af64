"""Sandboxes as the chaos tests ask for them: their blueprints, and the ids that come back."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Any

LET_GO = "/tmp/let-go"


@dataclass(frozen=True, slots=True)
class Started:
    """A sandbox that was started, with all its ids."""

    sandbox_id: str
    workspace_id: str
    attempt_id: str
    run_id: str
    job_id: str
    repository: str
    tag: str


def nap(seconds: int) -> tuple[str, str]:
    """Return a script that sleeps, and an argument that tells its process from all others."""
    argument = f"{seconds}.{random.randrange(10**8, 10**9)}"
    return f"sleep {argument}", argument


def hold() -> tuple[str, str]:
    """Return a script that goes on when its process is ended, and an argument that tells that.

    See ``processes.end`` and ``processes.end_until``.
    """
    script, argument = nap(600)
    return f"{script} || true", argument


def held(script: str) -> str:
    """Return a script that begins when somebody lets it; see ``Engine.let_go``."""
    return f"until [ -e {LET_GO} ]; do sleep 0.1; done\n{script}"


def blueprint(
    *, install: str | None = None, setup: str = "true", foreground: str = "", **runtime: Any
) -> dict[str, Any]:
    """Return a small blueprint. With ``install`` its image has to be built anew."""
    harness: dict[str, Any] = {"id": "shell"}
    if install is not None:
        script = f"{install}\n: {uuid.uuid4()}"
        harness = {"id": "custom", "install": script, "command": ["true"]}
    spec: dict[str, Any] = {
        "harness": harness,
        "lifecycle": {
            "setup": [{"id": "prepare", "run": f'echo ran >> "$HOME/setup.log"\n{setup}'}]
        },
    }
    if foreground:
        spec["lifecycle"]["startup"] = {"foreground": {"kind": "command", "run": foreground}}
    if runtime:
        spec["runtime"] = runtime
    return spec


def started(answer: dict[str, Any]) -> Started:
    """Return the ids in an answer to ``POST /v1/sandboxes``."""
    return Started(
        answer["sandboxId"],
        answer["workspaceId"],
        answer["attemptId"],
        answer["runId"],
        answer["jobId"],
        answer["repository"],
        answer["tag"],
    )
