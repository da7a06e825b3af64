"""A workspace ends without us: it is said so, with the reason, within seconds."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
import requests

from tests.chaos.verdict import assert_nothing_left_over, assert_nothing_open, assert_ready
from tests.stack.private_stack import OWNER, UNSUSPICIOUS, PrivateStack
from tests.stack.processes import wait_for
from tests.stack.sandboxes import Started, blueprint, held
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


def _assert_failed(stack: PrivateStack, job: Started, code: str) -> None:
    shown = stack.wait_status(job, "failed")
    assert shown["error"]["code"] == code, shown["error"]
    assert shown["reason"]["code"] == code
    workspace = stack.get(f"/v1/workspaces/{job.workspace_id}")
    assert (workspace["status"], workspace["reason"]["code"]) == ("failed", code)
    assert Counter(stack.events(job))["runtime.failed"] == 1
    assert_nothing_open(stack)
    wait_for(lambda: not stack.engine.containers(job), "the ended container is removed")
    assert_nothing_left_over(stack, job)


def test_a_container_that_was_removed_behind_our_back_is_reported_as_lost(
    stack: PrivateStack,
) -> None:
    stack.start_worker()
    job = stack.post(blueprint())
    assert_ready(stack, job, claims=1)
    stack.engine.containers(job)[0].remove(force=True)
    _assert_failed(stack, job, "runtime-lost")


def test_a_container_whose_first_process_is_killed_is_reported_as_ended(
    stack: PrivateStack,
) -> None:
    stack.start_worker()
    job = stack.post(blueprint())
    assert_ready(stack, job, claims=1)
    os.kill(stack.engine.containers(job)[0].attrs["State"]["Pid"], signal.SIGKILL)
    _assert_failed(stack, job, "runtime-exited")


def test_a_foreground_that_eats_all_memory_is_reported_as_such(stack: PrivateStack) -> None:
    stack.start_worker()
    greedy = held("exec python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'")
    job = stack.post(blueprint(foreground=greedy, resources={"memoryMb": 64}))
    stack.wait_status(job, "ready")
    stack.engine.let_go(job)
    _assert_failed(stack, job, "runtime-out-of-memory")


def test_a_foreground_that_ends_well_stops_the_workspace(stack: PrivateStack) -> None:
    stack.start_worker()
    job = stack.post(blueprint(foreground=held("exit 0")))
    stack.wait_status(job, "ready")
    stack.engine.let_go(job)
    stack.wait_status(job, "stopped")
    assert_nothing_open(stack)
    wait_for(lambda: not stack.engine.containers(job), "the ended container is removed")


def test_a_persistent_workspace_whose_first_process_is_killed_comes_back(
    stack: PrivateStack,
) -> None:
    worker = stack.start_worker()
    job, other = stack.post(blueprint(persistence="persistent")), stack.post(blueprint())
    assert_ready(stack, job, claims=1)
    assert_ready(stack, other, claims=1)
    pid = stack.engine.containers(job)[0].attrs["State"]["Pid"]
    os.kill(pid, signal.SIGKILL)

    def came_back() -> bool:
        found = stack.engine.containers(job)
        return len(found) == 1 and found[0].attrs["State"]["Pid"] not in (0, pid)

    wait_for(came_back, "the engine has started the container again")
    stack.engine.containers(other)[0].remove(force=True)
    wait_for(lambda: worker.says('"lost": 1'), "a pass that has seen both is over")
    assert stack.wait_status(other, "failed")["error"]["code"] == "runtime-lost"
    # Still ready, and the setup steps were not repeated.
    assert_ready(stack, job, claims=1)


def test_a_container_that_no_row_wants_is_removed(stack: PrivateStack) -> None:
    stack.start_worker()
    job = stack.post(blueprint())
    assert_ready(stack, job, claims=1)
    stack.database.execute(
        "delete from workspaces_workspaceevent where workspace_id = %s", job.workspace_id
    )
    stack.database.execute(
        "update workspaces_runtimeinstance set status = 'stopped', finished_at = now()"
        " where run_id = %s",
        job.run_id,
    )
    wait_for(lambda: not stack.engine.containers(job), "the container is removed")
    assert_nothing_left_over(stack, job)


def test_a_workspace_whose_engine_was_declared_gone_is_ended_when_that_comes_back(
    stack: PrivateStack,
) -> None:
    worker = stack.start_worker()
    job = stack.post(blueprint(persistence="persistent"))
    assert_ready(stack, job, claims=1)
    (engine_id,) = stack.database.one(
        "select engine_id from workspaces_runtimeinstance where run_id = %s", job.run_id
    )
    wait_for(
        lambda: stack.database.rows("select engine_id from work_heartbeat") == [(engine_id,)],
        "the worker has told its engine",
    )
    with pytest.raises(AssertionError, match="has a live build worker"):
        stack.manage("forgetengine", engine_id, **UNSUSPICIOUS)
    worker.kill()
    wait_for(
        lambda: (
            not stack.database.rows(
                "select from work_heartbeat where seen_at > now() - interval '2.5 seconds'"
            )
        ),
        "the worker counts as dead",
    )
    stack.manage("forgetengine", engine_id)
    assert stack.wait_status(job, "failed")["error"]["code"] == "engine-gone"
    assert stack.engine.containers(job)[0].status == "running"

    stack.start_worker(WORKSPACE_KEEP_ENDED_MS="3600000")
    wait_for(
        lambda: [each.status for each in stack.engine.containers(job)] == ["exited"],
        "the container is ended and kept",
    )
    path = f"/v1/workspaces/{job.workspace_id}"
    started = requests.post(
        f"{stack.api}{path}/start", params={"ownerUserId": OWNER}, timeout=LONG_WAIT
    )
    assert started.status_code == 202, started.text
    wait_for(lambda: stack.get(path)["status"] == "ready", "it is ready again")
    wait_for(lambda: not stack.engine.containers(job), "the kept container is removed")
