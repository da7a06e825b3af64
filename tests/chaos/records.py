"""Runs as the chaos tests ask for them, and what their records must hold at the end."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import requests

from tests.stack.private_stack import OWNER, PrivateStack
from tests.stack.processes import Worker, wait_for
from tests.stack.sandboxes import LET_GO, Started, blueprint
from tests.support.waiting import LONG_WAIT

FINAL_SECONDS = LONG_WAIT
"""No run stays open for longer after whatever it depended on has died."""

LINE = "%08d 0123456789 abcdefghijklmnopqrstuvwxyz\n"


@dataclass(frozen=True, slots=True)
class Program:
    """A program that writes numbered lines, and everything that it writes."""

    argv: list[str]
    output: bytes
    marker: str
    """An argument that tells its process from all others."""


def program(lines: int, *, seconds: float = 0.0, code: int = 0, held: bool = False) -> Program:
    """Return a program that writes ``lines`` lines in about ``seconds`` seconds.

    One that is ``held`` waits in the middle until somebody lets it go on; see ``Engine.let_go``.
    """
    marker = f"run-{uuid.uuid4()}"
    script = (
        "import os, sys, time\n"
        f"for number in range({lines}):\n"
        f"    sys.stdout.write({LINE!r} % number)\n"
        f"    while {held} and number == {lines // 2} and not os.path.exists({LET_GO!r}):\n"
        "        sys.stdout.flush()\n"
        "        time.sleep(0.1)\n"
        f"    if {seconds} and number % 20 == 19:\n"
        "        sys.stdout.flush()\n"
        f"        time.sleep({seconds} * 20 / {lines})\n"
        "sys.stdout.flush()\n"
        f"sys.exit({code})\n"
    )
    output = "".join(LINE % number for number in range(lines)).encode()
    return Program(["python3", "-c", script, marker], output, marker)


def ready_workspace(stack: PrivateStack, **members: Any) -> Started:
    """Return a workspace that is ready; its build worker keeps looking after it."""
    stack.start_worker()
    job = stack.post(blueprint(**members))
    stack.wait_status(job, "ready")
    return job


def execute(stack: PrivateStack, job: Started, what: Program, **members: Any) -> str:
    """Have the program executed in the workspace; return the run's id."""
    answer = requests.post(
        f"{stack.api}/v1/runs",
        json={
            "ownerUserId": OWNER,
            "workspaceId": job.workspace_id,
            "harnessId": "shell",
            "mode": "one-shot",
            "command": {"executable": what.argv[0], "args": what.argv[1:]},
            **members,
        },
        timeout=LONG_WAIT,
    )
    assert answer.status_code in (201, 202), answer.text
    return str(answer.json()["runId"])


def read_run(stack: PrivateStack, run_id: str) -> Any:
    """Return the run as the API shows it."""
    return stack.get(f"/v1/runs/{run_id}")


def wait_final(stack: PrivateStack, run_id: str, seconds: float = FINAL_SECONDS) -> Any:
    """Wait until the run has ended, and return it."""
    wait_for(
        lambda: read_run(stack, run_id)["status"] in {"completed", "failed", "cancelled"},
        "the run has ended",
        seconds,
    )
    return read_run(stack, run_id)


def stored(stack: PrivateStack, run_id: str) -> int:
    """Return how many events of the run are stored."""
    (count,) = stack.database.one(
        "select event_count from run_head join runs_run on number = run_number where id = %s",
        run_id,
    )
    return int(count)


def wait_stored(stack: PrivateStack, run_id: str, count: int) -> None:
    """Wait until so many events are stored."""
    wait_for(lambda: stored(stack, run_id) >= count, f"{count} events are stored")


def holder(stack: PrivateStack, run_id: str) -> Worker:
    """Return the run worker that is at the run."""

    def found() -> Worker | None:
        (worker_id,) = stack.database.one("select worker_id from runs_run where id = %s", run_id)
        for child in stack.processes:
            if isinstance(child, Worker) and f"-{child.pid}-" in worker_id:
                return child
        return None

    wait_for(found, "a worker is at the run")
    worker = found()
    assert worker is not None
    return worker


def output(stack: PrivateStack, run_id: str) -> bytes:
    """Return the standard output that the record holds, in the order of its offsets.

    Asserts that no byte is there twice and that the sequence has no hole.
    """
    rows = stack.database.rows(
        "select stream_offset, length, body from run_event join runs_run on number = run_number"
        " where id = %s and kind = 4 and stream = 2 order by sequence",
        run_id,
    )
    content = b""
    for offset, length, body in rows:
        assert offset == len(content), f"{offset} follows {len(content)}"
        assert length == len(body)
        content += bytes(body)
    (events, last) = stack.database.one(
        "select count(*), coalesce(max(sequence), 0) from run_event"
        " join runs_run on number = run_number where id = %s",
        run_id,
    )
    assert events == last
    return content


def assert_complete(stack: PrivateStack, run_id: str, what: Program, *, code: int = 0) -> Any:
    """The run has ended with ``code``, and its record has every byte, once, and says so."""
    run = wait_final(stack, run_id)
    assert (run["status"], run.get("exitCode")) == ("completed" if code == 0 else "failed", code)
    assert output(stack, run_id) == what.output
    loss = stack.get(f"/v1/runs/{run_id}/loss")
    assert loss["complete"], loss
    assert loss["spans"] == []
    answer = requests.get(
        f"{stack.api}/v1/runs/{run_id}/scrollback?stream=stdout",
        headers={"accept": "application/octet-stream"},
        timeout=LONG_WAIT,
    )
    assert answer.content == what.output
    assert_nobody_is_at(stack, run_id)
    return run


def assert_ended_early(stack: PrivateStack, run_id: str, what: Program) -> Any:
    """The run has ended, the record has a beginning of its output, and names the end as missing."""
    run = wait_final(stack, run_id)
    assert run["status"] == "failed", run
    assert what.output.startswith(output(stack, run_id))
    loss = stack.get(f"/v1/runs/{run_id}/loss")
    assert not loss["complete"]
    assert loss["earlyClose"], loss
    assert_nobody_is_at(stack, run_id)
    return run


def assert_nobody_is_at(stack: PrivateStack, run_id: str) -> None:
    """A run that has ended has no lease, and its record is sealed."""
    (lease, sealed) = stack.database.one(
        "select lease_expires_at, sealed_at from runs_run join run_head on number = run_number"
        " where id = %s",
        run_id,
    )
    assert lease is None
    assert sealed is not None
