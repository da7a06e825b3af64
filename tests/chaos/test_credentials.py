"""A worker dies between starting a workspace and giving it its connected accounts."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import requests

from tests.chaos.verdict import assert_ended, assert_ready
from tests.stack.container_output import heard_to_the_end
from tests.stack.gates import Gate, closed
from tests.stack.private_stack import OWNER, PrivateStack
from tests.stack.processes import Worker, end, runs, wait_for
from tests.stack.sandboxes import Started, blueprint, hold
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]

SECRET = "the-secret-of-a-workspace-whose-worker-dies"
LOOK = 'printf %s "$STAGING_TOKEN" | sha256sum | cut -c1-64 >> "$HOME/seen"'


def post(stack: PrivateStack, setup: str = LOOK) -> Started:
    """Start a sandbox that is given an account, whose setup step looks for it."""
    account = {"ownerUserId": OWNER, "provider": "generic", "name": "STAGING_TOKEN"}
    answer = requests.post(
        f"{stack.api}/v1/connected-accounts", json={**account, "secret": SECRET}, timeout=LONG_WAIT
    )
    assert answer.status_code == 201, answer.text
    return stack.post(blueprint(setup=setup), credentials={"generic": ["STAGING_TOKEN"]})


def assert_delivered(stack: PrivateStack, job: Started, *, claims: int) -> None:
    """The workspace is ready, and its step has seen the secret, once."""
    assert_ready(stack, job, claims=claims)
    (container,) = stack.engine.containers(job)
    code, output = heard_to_the_end(container, "cat", "/home/workspace/seen")
    assert (code, output) == (0, hashlib.sha256(SECRET.encode()).hexdigest().encode() + b"\n")


def only_container(stack: PrivateStack, job: Started) -> Any:
    (container,) = stack.engine.containers(job)
    assert container.status == "running"
    return container


@pytest.mark.parametrize("gate", [Gate.BEFORE_DELIVERED, Gate.AFTER_DELIVERED])
def test_a_worker_killed_before_the_delivery_leaves_its_container_to_the_next(
    stack: PrivateStack, gate: Gate
) -> None:
    job = post(stack)
    with closed(gate, stack.postgres.url) as held:
        worker = stack.launch_worker()
        held.wait_reached()
        container = only_container(stack, job)
        stack.launch_worker()
        worker.kill()
    assert_delivered(stack, job, claims=2)
    assert only_container(stack, job).id == container.id


def test_a_worker_killed_after_the_delivery_leaves_nothing_to_deliver(stack: PrivateStack) -> None:
    script, argument = hold()
    job = post(stack, f"{LOOK}\n{script}")
    worker = stack.launch_worker()
    wait_for(lambda: runs(argument), "the setup step runs")
    container = only_container(stack, job)
    stack.launch_worker()
    worker.kill()
    end(argument)
    assert_delivered(stack, job, claims=2)
    assert only_container(stack, job).id == container.id


def test_a_successor_that_cannot_open_the_account_says_so_and_leaves_nothing(
    stack: PrivateStack,
) -> None:
    job = post(stack)
    with closed(Gate.BEFORE_DELIVERED, stack.postgres.url) as held:
        worker = stack.launch_worker()
        held.wait_reached()
        only_container(stack, job)
        stack.launch_worker(SVC_CREDENTIALS_KEY="")
        worker.kill()
    shown = assert_ended(stack, job, "failed", claims=2, code="credentials-key-unset", tags=1)
    assert SECRET not in str(shown)


def test_a_workspace_that_waited_in_vain_ends_by_itself_and_is_replaced(
    stack: PrivateStack,
) -> None:
    """All workers are away for longer than the workspace waits."""
    job = post(stack)
    with closed(Gate.BEFORE_DELIVERED, stack.postgres.url) as held:
        worker = stack.launch_worker(WORKSPACE_CREDENTIALS_TIMEOUT_MS="2000")
        held.wait_reached()
        container = only_container(stack, job)
        worker.kill()
    wait_for(lambda: _ended(container), "the workspace has given up waiting")
    stack.launch_worker()
    assert_delivered(stack, job, claims=2)
    assert only_container(stack, job).id != container.id


def _ended(container: Any) -> bool:
    container.reload()
    return bool(container.status == "exited")


def test_no_log_of_any_worker_has_the_secret(stack: PrivateStack) -> None:
    job = post(stack)
    with closed(Gate.AFTER_DELIVERED, stack.postgres.url) as held:
        worker = stack.launch_worker(SVC_LOG_LEVEL="DEBUG")
        held.wait_reached()
        stack.launch_worker(SVC_LOG_LEVEL="DEBUG")
        worker.kill()
    assert_delivered(stack, job, claims=2)
    workers = [child for child in stack.processes if isinstance(child, Worker)]
    assert [worker.says(job.job_id) > 0 for worker in workers] == [True, True]
    assert [child.says(SECRET) for child in stack.processes] == [0] * len(stack.processes)
