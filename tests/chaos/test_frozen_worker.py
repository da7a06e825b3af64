"""Workers that sleep through the loss of their lease, and workers that only seem dead."""

from __future__ import annotations

import psycopg
import pytest

from tests.chaos.verdict import assert_ready
from tests.stack.gates import Gate, closed
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import end, end_until, runs, wait_for
from tests.stack.sandboxes import blueprint, hold

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


def test_a_worker_that_wakes_after_its_job_was_finished_by_another_changes_nothing(
    stack: PrivateStack,
) -> None:
    stack.start_workers(2)
    script, argument = hold()
    job = stack.post(blueprint(install=script))
    wait_for(lambda: runs(argument), "the build is at its install script")
    sleeper = stack.holder(job)
    sleeper.freeze()
    end_until(argument, lambda: stack.sandbox(job)["status"] == "ready", "the job is ready")
    shown = stack.wait_status(job, "ready")
    (container,) = stack.engine.containers(job)

    sleeper.thaw()
    wait_for(lambda: sleeper.says("job_lost"), "the sleeper sees that it lost the job")
    assert assert_ready(stack, job, claims=2)["publishedImage"] == shown["publishedImage"]
    assert [same.id for same in stack.engine.containers(job)] == [container.id]
    again = stack.post(blueprint())
    assert_ready(stack, again, claims=1)


def test_a_worker_that_wakes_while_another_is_at_its_job_leaves_it_alone(
    stack: PrivateStack,
) -> None:
    stack.start_workers(2)
    script, argument = hold()
    job = stack.post(blueprint(setup=script))
    wait_for(lambda: runs(argument), "the setup step runs")
    sleeper = stack.holder(job)
    sleeper.freeze()
    stack.database.wait_claims(job, 2)
    sleeper.thaw()
    wait_for(lambda: sleeper.says("job_lost"), "the sleeper sees that it lost the job")
    end(argument)
    assert_ready(stack, job, claims=2)


def test_a_worker_frozen_inside_a_transaction_holds_nobody_up(stack: PrivateStack) -> None:
    job = stack.post(blueprint(install="true"))
    with closed(Gate.BEFORE_PUBLISHED, stack.postgres.url) as gate:
        sleeper = stack.launch_worker()
        gate.wait_reached()
        stack.start_worker()
        sleeper.freeze()
    stack.database.wait_claims(job, 2)
    other = stack.post(blueprint())
    assert_ready(stack, other, claims=1)
    assert_ready(stack, job, claims=2)
    sleeper.thaw()
    wait_for(lambda: sleeper.says("job_lost"), "the sleeper sees that it lost the job")
    assert_ready(stack, job, claims=2)


def test_a_worker_frozen_while_it_pushes_does_not_keep_its_successor_from_pushing(
    stack: PrivateStack,
) -> None:
    sleeper = stack.start_worker()
    script, argument = hold()
    job = stack.post(blueprint(install=script))
    wait_for(lambda: runs(argument), "the build is at its install script")
    with psycopg.connect(stack.postgres.url) as connection:
        connection.execute("lock table workspaces_buildjob in access exclusive mode")
        end(argument)
        wait_for(lambda: _session_locks(stack), "the worker holds the lock of the push")
        sleeper.freeze()
    stack.start_worker()
    end_until(argument, lambda: stack.sandbox(job)["status"] == "ready", "the job is ready")
    shown = stack.wait_status(job, "ready")
    sleeper.thaw()
    wait_for(lambda: sleeper.says("job_lost"), "the sleeper sees that it lost the job")
    assert assert_ready(stack, job, claims=2)["publishedImage"] == shown["publishedImage"]


def test_a_worker_frozen_while_it_reconciles_does_not_keep_the_others_from_it(
    stack: PrivateStack,
) -> None:
    sleeper = stack.start_worker(WORKER_SWEEP_INTERVAL_MS="10", WORKER_RECONCILE_INTERVAL_MS="1")
    job = stack.post(blueprint())
    assert_ready(stack, job, claims=1)

    def frozen_with_a_lock() -> bool:
        sleeper.freeze()
        if _session_locks(stack):
            return True
        sleeper.thaw()
        return False

    wait_for(frozen_with_a_lock, "the worker is frozen while it reconciles")
    stack.start_worker()
    stack.engine.containers(job)[0].remove(force=True)
    stack.wait_status(job, "failed")


def _session_locks(stack: PrivateStack) -> bool:
    """Whether anybody holds one of the product's advisory locks."""
    query = "select 1 from pg_locks where locktype = 'advisory' and granted and classid <> 0"
    return bool(stack.database.rows(query))


def test_a_worker_whose_write_waits_for_a_lock_is_not_taken_for_dead(stack: PrivateStack) -> None:
    job = stack.post(blueprint())
    # Ten times as much as between two beats, so that a busy machine makes nobody seem dead.
    times = {"WORKER_HEARTBEAT_INTERVAL_MS": "1000", "WORKER_HEARTBEAT_STALE_MS": "10000"}
    with closed(Gate.BEFORE_READY, stack.postgres.url) as gate:
        stack.launch_worker(**times)
        gate.wait_reached()
        other = stack.start_worker(**times)
        # Longer than the time after which a silent worker counts as dead.
        wait_for(
            lambda: stack.database.one(
                "select now() > started_at + interval '13 s' from work_heartbeat"
                " where worker_id like %s",
                f"%-{other.pid}-%",
            )[0],
            "thirteen seconds",
        )
    assert not other.says("leases_of_dead_workers_ended")
    assert_ready(stack, job, claims=1)
