"""A worker dies by SIGKILL at every point of a job, and the job is finished all the same."""

from __future__ import annotations

import pytest

from tests.chaos.verdict import assert_ended, assert_ready
from tests.stack.gates import Gate, closed
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import end, end_until, pids_having, runs, wait_for
from tests.stack.sandboxes import blueprint, hold
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]

RECOVERY_SECONDS = LONG_WAIT
"""Far below the lease of 15 minutes; on a machine with nothing else to do it takes some 25 s."""
DEFAULTS = {
    "WORKER_HEARTBEAT_INTERVAL_MS": "5000",
    "WORKER_HEARTBEAT_STALE_MS": "20000",
    "WORKER_SWEEP_INTERVAL_MS": "3000",
    "WORKSPACE_BUILD_JOB_QUEUED_OVERDUE_MS": "10000",
}


def test_a_worker_killed_after_its_claim_is_replaced(stack: PrivateStack) -> None:
    job = stack.post(blueprint())
    with closed(Gate.AFTER_CLAIM, stack.postgres.url) as gate:
        worker = stack.launch_worker()
        gate.wait_reached()
        stack.launch_worker()
        worker.kill()
    assert_ready(stack, job, claims=2)


def test_a_worker_killed_during_a_build_is_replaced_long_before_its_lease_ends(
    stack: PrivateStack,
) -> None:
    stack.start_workers(2, **DEFAULTS)
    script, argument = hold()
    job = stack.post(blueprint(install=script))
    wait_for(lambda: runs(argument), "the build is at its install script")
    first = pids_having(argument)
    stack.holder(job).kill()
    stack.database.wait_claims(job, 2, RECOVERY_SECONDS)
    wait_for(lambda: not first & pids_having(argument), "the first build is ended")
    end_until(argument, lambda: stack.sandbox(job)["status"] == "ready", "the job is ready")
    assert_ready(stack, job, claims=2)


def test_a_worker_killed_while_it_reads_an_index_of_packages_leaves_no_container(
    stack: PrivateStack,
) -> None:
    # One that is there from an earlier time is due again.
    stack.database.execute("update workspaces_packageindex set requested_at = now()")
    worker = stack.start_worker(PACKAGE_SYNC_FAMILIES="debian", PACKAGE_SYNC_INTERVAL_MS="200")
    wait_for(stack.engine.strays, "the index is being read")
    job = stack.post(blueprint())
    stack.wait_status(job, "ready")
    worker.kill()
    stack.start_worker(PACKAGE_SYNC_INTERVAL_MS="200")
    assert_ready(stack, job, claims=1)


def test_a_worker_killed_after_the_push_is_replaced_and_one_image_keeps_the_tag(
    stack: PrivateStack,
) -> None:
    job = stack.post(blueprint(install="true"))
    with closed(Gate.BEFORE_PUBLISHED, stack.postgres.url) as gate:
        worker = stack.launch_worker()
        gate.wait_reached()
        pushed = stack.registry.tags(job)
        stack.launch_worker()
        worker.kill()
    assert_ready(stack, job, claims=2)
    # The layers come from the cache; when the image itself was made differs.
    assert set(stack.registry.tags(job)) == set(pushed)


def test_a_worker_killed_between_publishing_and_launching_is_replaced_at_the_launch(
    stack: PrivateStack,
) -> None:
    job = stack.post(blueprint())
    with closed(Gate.AFTER_PUBLISHED, stack.postgres.url) as gate:
        worker = stack.launch_worker()
        gate.wait_reached()
        successor = stack.launch_worker()
        worker.kill()
    wait_for(lambda: stack.database.job_status(job) == "succeeded", "the write was kept")
    assert_ready(stack, job, claims=2)
    assert successor.says('"status": "succeeded"') == 1


def test_a_worker_killed_while_the_workspace_boots_leaves_its_container_to_the_next(
    stack: PrivateStack,
) -> None:
    script, argument = hold()
    job = stack.post(blueprint(setup=script))
    worker = stack.launch_worker()
    wait_for(lambda: runs(argument), "the setup step runs")
    (container,) = stack.engine.containers(job)
    stack.launch_worker()
    worker.kill()
    end(argument)
    assert_ready(stack, job, claims=2)
    assert [same.id for same in stack.engine.containers(job)] == [container.id]


def test_a_worker_killed_before_the_last_write_leaves_its_container_to_the_next(
    stack: PrivateStack,
) -> None:
    job = stack.post(blueprint())
    with closed(Gate.BEFORE_READY, stack.postgres.url) as gate:
        worker = stack.launch_worker()
        gate.wait_reached()
        (container,) = stack.engine.containers(job)
        worker.kill()
        gate.lose()
    stack.launch_worker()
    assert_ready(stack, job, claims=2)
    assert [same.id for same in stack.engine.containers(job)] == [container.id]


def test_a_worker_killed_after_the_last_write_leaves_nothing_to_do(stack: PrivateStack) -> None:
    job = stack.post(blueprint())
    with closed(Gate.AFTER_READY, stack.postgres.url) as gate:
        worker = stack.launch_worker()
        gate.wait_reached()
        worker.kill()
    # The message was settled when the container had started: since then the row's lease counts.
    assert stack.broker.depth() == 0
    successor = stack.start_worker()
    assert_ready(stack, job, claims=1)
    assert not successor.says('"job_claimed"')


def test_a_job_that_kills_every_worker_fails_after_the_third(stack: PrivateStack) -> None:
    job = stack.post(blueprint())
    for _ in range(3):
        with closed(Gate.AFTER_CLAIM, stack.postgres.url) as gate:
            worker = stack.launch_worker()
            gate.wait_reached()
            worker.kill()
    stack.start_worker()
    assert_ended(stack, job, "failed", code="attempts-exhausted", claims=4)


def test_a_failure_of_the_last_moment_is_not_repeated(stack: PrivateStack) -> None:
    job = stack.post(blueprint(setup="exit 7"))
    stack.start_worker()
    assert_ended(stack, job, "failed", code="step-failed", claims=1, tags=1)
