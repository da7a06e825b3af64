"""PostgreSQL goes away in the middle of a job: what was done is kept and written afterwards."""

from __future__ import annotations

import pytest

from tests.chaos.verdict import assert_ended, assert_ready
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import Child, runs, wait_for
from tests.stack.sandboxes import blueprint, nap

# Twice as long as elsewhere: after an outage everybody gets the time to beat again.
UNHURRIED = {"WORKER_HEARTBEAT_INTERVAL_MS": "1000", "WORKER_HEARTBEAT_STALE_MS": "5000"}

MISSED = 5
"""So many heartbeats in a row fail in each outage; what is written meanwhile fails as well."""

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


def wait_missed(*workers: Child) -> None:
    """Wait until each of them has noticed for a while that the database is away."""
    for worker in workers:
        before = worker.says("heartbeat_failed")
        wait_for(lambda: worker.says("heartbeat_failed") >= before + MISSED, "it misses beats")  # noqa: B023


def test_a_build_that_ends_while_the_database_is_down_is_written_when_it_is_back(
    stack: PrivateStack,
) -> None:
    workers = stack.start_workers(2, **UNHURRIED)
    script, argument = nap(3)
    job = stack.post(blueprint(install=script))
    wait_for(lambda: runs(argument), "the build is at its install script")
    stack.postgres.kill()
    wait_for(lambda: not runs(argument), "the build goes on without a database")
    wait_missed(*workers)
    stack.postgres.start()
    assert_ready(stack, job, claims=1)
    assert sum(worker.says("job_claimed") for worker in workers) == 1


def test_a_database_that_restarts_in_order_during_a_build_is_hardly_noticed(
    stack: PrivateStack,
) -> None:
    stack.start_workers(2, **UNHURRIED)
    script, argument = nap(5)
    job = stack.post(blueprint(install=script))
    wait_for(lambda: runs(argument), "the build is at its install script")
    stack.postgres.restart()
    assert_ready(stack, job, claims=1)


def test_a_failure_while_the_database_is_down_is_written_when_it_is_back(
    stack: PrivateStack,
) -> None:
    worker = stack.start_worker()
    script, argument = nap(3)
    job = stack.post(blueprint(setup=f"{script}\nexit 7"))
    wait_for(lambda: runs(argument), "the setup step runs")
    stack.postgres.kill()
    wait_for(lambda: not runs(argument), "the step has failed")
    wait_missed(worker)
    stack.postgres.start()
    assert_ended(stack, job, "failed", code="step-failed", claims=1, tags=1)


def test_idle_workers_come_back_after_the_database_was_killed(stack: PrivateStack) -> None:
    workers = stack.start_workers(2, **UNHURRIED)
    stack.postgres.kill()
    wait_missed(*workers)
    stack.postgres.start()
    assert_ready(stack, stack.post(blueprint()), claims=1)
