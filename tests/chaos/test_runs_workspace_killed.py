"""What happens to a workspace ends its runs within seconds; their records say what is missing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.chaos.records import (
    assert_complete,
    assert_ended_early,
    execute,
    output,
    program,
    ready_workspace,
    wait_final,
    wait_stored,
)
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import runs, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


def _parent_of(marker: str) -> int:
    """Return the process that started the one with this argument: its recorder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() not in (entry / "cmdline").read_bytes().split(b"\0"):
                    continue
                return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    raise AssertionError(f"nothing runs with {marker}")


def test_a_recorder_killed_in_the_workspace_ends_the_run_with_its_program(
    stack: PrivateStack,
) -> None:
    job = ready_workspace(stack)
    stack.start_run_worker()
    what = program(100_000, seconds=600)
    run = execute(stack, job, what)
    wait_stored(stack, run, 5)
    os.kill(_parent_of(what.marker), signal.SIGKILL)
    shown = wait_final(stack, run)
    assert shown["status"] == "failed"
    wait_for(lambda: not runs(what.marker), "the program has ended with its recorder")
    assert what.output.startswith(output(stack, run))
    assert stack.get(f"/v1/runs/{run}")["errorCode"] == "run-lost"


def test_a_container_that_is_removed_ends_its_runs(stack: PrivateStack) -> None:
    job = ready_workspace(stack)
    stack.start_run_worker()
    what = program(100_000, seconds=600)
    run = execute(stack, job, what)
    wait_stored(stack, run, 5)
    stack.engine.containers(job)[0].remove(force=True)
    shown = assert_ended_early(stack, run, what)
    assert shown["errorCode"] == "workspace-ended"
    assert wait_final(stack, job.run_id)["status"] == "failed"


def test_a_container_whose_first_process_is_killed_gives_out_what_it_still_holds(
    stack: PrivateStack,
) -> None:
    job = ready_workspace(stack)
    worker = stack.start_run_worker()
    what = program(100_000, seconds=600)
    run = execute(stack, job, what)
    wait_stored(stack, run, 5)
    worker.kill()
    os.kill(stack.engine.containers(job)[0].attrs["State"]["Pid"], signal.SIGKILL)
    stack.start_run_worker()
    assert_ended_early(stack, run, what)
    assert wait_final(stack, job.run_id)["status"] == "failed"


def test_a_run_that_takes_no_time_is_whole(stack: PrivateStack) -> None:
    job = ready_workspace(stack)
    stack.start_run_worker()
    for _ in range(5):
        what = program(1)
        assert_complete(stack, execute(stack, job, what), what)
