"""A worker dies at every point of a stop, a start and a delete, and what was wanted comes true."""

from __future__ import annotations

from collections import Counter

import pytest
import requests

from tests.chaos.records import wait_final
from tests.chaos.verdict import assert_nothing_open
from tests.stack.gates import Gate, closed
from tests.stack.private_stack import OWNER, PrivateStack
from tests.stack.processes import Worker, wait_for
from tests.stack.sandboxes import Started, blueprint, started
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]
STEPS_OF_A_STOP = range(1, 5)
STEPS_OF_A_DELETE = range(1, 6)


def workspace(job: Started) -> str:
    return f"/v1/workspaces/{job.workspace_id}"


def stop(stack: PrivateStack, job: Started) -> None:
    url = f"{stack.api}{workspace(job)}/stop"
    answer = requests.post(url, json={"ownerUserId": OWNER}, timeout=LONG_WAIT)
    assert answer.status_code == 202, answer.text


def delete(stack: PrivateStack, job: Started) -> None:
    url = f"{stack.api}{workspace(job)}?ownerUserId={OWNER}"
    answer = requests.delete(url, timeout=LONG_WAIT)
    assert answer.status_code == 202, answer.text


def start(stack: PrivateStack, job: Started) -> Started:
    url = f"{stack.api}{workspace(job)}/start"
    answer = requests.post(url, json={"ownerUserId": OWNER}, timeout=LONG_WAIT)
    assert answer.status_code == 202, answer.text
    return started(answer.json())


def running(stack: PrivateStack, **runtime: str) -> tuple[Started, Worker]:
    """Return a workspace that runs, and the worker that has launched it."""
    worker = stack.start_worker()
    job = stack.post(blueprint(**runtime))
    stack.wait_status(job, "ready")
    return job, worker


def wait_until(stack: PrivateStack, job: Started, status: str) -> None:
    """Wait until the workspace is what is wanted; its containers are gone by then."""

    def there() -> bool:
        return bool(stack.get(workspace(job))["status"] == status)

    wait_for(there, f"the workspace is {status}")
    assert not stack.engine.containers(job)


def assert_stopped(stack: PrivateStack, job: Started) -> None:
    """It is stopped, each step was told once, its record is whole, and it can be started again."""
    wait_until(stack, job, "stopped")
    told = Counter(stack.events(job))
    for step in (
        "workspace.stop-requested",
        "runtime.stopping",
        "runtime.stopped",
        "workspace.stopped",
    ):
        assert told[step] == 1, told
    assert not told["runtime.failed"]
    stack.start_run_worker()
    assert wait_final(stack, job.run_id)["status"] == "completed"
    assert stack.get(f"/v1/runs/{job.run_id}/loss")["complete"]
    again = start(stack, job)
    stack.wait_status(again, "ready")
    assert_nothing_open(stack)


def assert_deleted(stack: PrivateStack, job: Started) -> None:
    """It is deleted, each step was told once, and the engine has nothing of it."""
    wait_until(stack, job, "deleted")
    assert stack.engine.volumes() == []
    told = Counter(stack.events(job))
    assert told["workspace.delete-requested"] == 1
    assert told["workspace.deleted"] == 1
    wait_for(lambda: not stack.engine.networks(), "its network is gone")
    assert_nothing_open(stack)


# ---------------------------------------------------------------- stop


@pytest.mark.parametrize("step", STEPS_OF_A_STOP)
def test_a_worker_killed_at_any_step_of_a_stop_is_replaced(stack: PrivateStack, step: int) -> None:
    job, worker = running(stack)
    with closed(Gate.AT_TRANSITION_STEP, stack.postgres.url) as gate:
        stop(stack, job)
        for _ in range(step - 1):
            gate.wait_reached()
            gate.let_one_pass()
        gate.wait_reached()
        worker.kill()
    stack.launch_worker()
    assert_stopped(stack, job)


@pytest.mark.parametrize("gate_name", ["AFTER_TRANSITION_CLAIM", "BEFORE_STOPPED", "AFTER_STOPPED"])
def test_a_worker_killed_at_any_write_of_a_stop_is_replaced(
    stack: PrivateStack, gate_name: str
) -> None:
    job, worker = running(stack)
    with closed(Gate[gate_name], stack.postgres.url) as gate:
        stop(stack, job)
        gate.wait_reached()
        if "STOPPED" in gate_name:
            assert not stack.engine.containers(job)
            assert stack.get(workspace(job))["status"] == "running"
        worker.kill()
    stack.launch_worker()
    assert_stopped(stack, job)


def test_a_stop_without_any_worker_is_done_when_there_is_one(stack: PrivateStack) -> None:
    job, worker = running(stack)
    worker.kill()
    stop(stack, job)
    shown = stack.get(workspace(job))
    assert (shown["status"], shown["reason"]["code"]) == ("running", "stopping")
    stack.launch_worker()
    assert_stopped(stack, job)


def test_a_database_that_restarts_in_the_middle_of_a_stop_is_waited_for(
    stack: PrivateStack,
) -> None:
    job, _ = running(stack)
    with closed(Gate.AT_TRANSITION_STEP, stack.postgres.url) as gate:
        stop(stack, job)
        gate.wait_reached()
    stack.postgres.restart()
    assert_stopped(stack, job)


# ---------------------------------------------------------------- start


def test_a_worker_killed_while_it_resumes_a_workspace_is_replaced(stack: PrivateStack) -> None:
    job, worker = running(stack, persistence="persistent")
    stop(stack, job)
    wait_until(stack, job, "stopped")
    with closed(Gate.BEFORE_READY, stack.postgres.url) as gate:
        again = start(stack, job)
        gate.wait_reached()
        worker.kill()
        gate.lose()
    stack.launch_worker()
    stack.wait_status(again, "ready")
    assert len(stack.engine.containers(again)) == 1
    assert_nothing_open(stack)


# ---------------------------------------------------------------- delete


@pytest.mark.parametrize("step", STEPS_OF_A_DELETE)
def test_a_worker_killed_at_any_step_of_a_delete_is_replaced(
    stack: PrivateStack, step: int
) -> None:
    job, worker = running(stack, persistence="persistent")
    assert len(stack.engine.volumes()) == 2
    with closed(Gate.AT_TRANSITION_STEP, stack.postgres.url) as gate:
        delete(stack, job)
        for _ in range(step - 1):
            gate.wait_reached()
            gate.let_one_pass()
        gate.wait_reached()
        worker.kill()
    stack.launch_worker()
    assert_deleted(stack, job)


@pytest.mark.parametrize(
    "gate_name", ["AFTER_TRANSITION_CLAIM", "BEFORE_STOPPED", "BEFORE_DELETED", "AFTER_DELETED"]
)
def test_a_worker_killed_at_any_write_of_a_delete_is_replaced(
    stack: PrivateStack, gate_name: str
) -> None:
    job, worker = running(stack, persistence="persistent")
    with closed(Gate[gate_name], stack.postgres.url) as gate:
        delete(stack, job)
        gate.wait_reached()
        if "DELETED" in gate_name:
            assert not stack.engine.containers(job)
            assert stack.engine.volumes() == []
            assert stack.get(workspace(job))["status"] == "stopped"
        worker.kill()
    stack.launch_worker()
    assert_deleted(stack, job)


def test_a_delete_of_what_a_killed_worker_was_launching_leaves_nothing(stack: PrivateStack) -> None:
    worker = stack.start_worker()
    job = stack.post(blueprint(setup="sleep 300", persistence="persistent"))
    wait_for(lambda: stack.engine.containers(job), "there is a container")
    worker.kill()
    delete(stack, job)
    stack.launch_worker()
    assert_deleted(stack, job)
