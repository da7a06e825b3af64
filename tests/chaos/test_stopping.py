"""Workers that are told to stop."""

from __future__ import annotations

import pytest

from tests.chaos.verdict import assert_ready
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import end, end_until, runs, wait_for
from tests.stack.sandboxes import blueprint, hold
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


def test_the_first_signal_lets_the_job_finish_and_takes_no_other(stack: PrivateStack) -> None:
    worker = stack.start_worker()
    script, argument = hold()
    job = stack.post(blueprint(install=script))
    wait_for(lambda: runs(argument), "the build is at its install script")
    worker.terminate()
    wait_for(lambda: worker.says("worker_draining"), "the worker drains")
    waiting = stack.post(blueprint())
    end(argument)
    assert worker.wait(LONG_WAIT) == 0
    assert not stack.database.rows("select 1 from work_heartbeat")
    shown = stack.wait_status(job, "ready")
    assert shown["publishedImage"]
    assert (stack.database.claims(waiting), stack.database.job_status(waiting)) == (0, "queued")
    wait_for(lambda: stack.broker.depth() == 1, "one message waits")

    stack.start_worker()
    assert_ready(stack, waiting, claims=1)
    assert_ready(stack, job, claims=1)


def test_the_second_signal_gives_the_job_to_another_worker_at_once(stack: PrivateStack) -> None:
    patient = {"WORKER_HEARTBEAT_STALE_MS": "600000"}
    worker = stack.start_worker(**patient)
    script, argument = hold()
    job = stack.post(blueprint(install=script))
    wait_for(lambda: runs(argument), "the build is at its install script")
    stack.start_worker(**patient)
    worker.terminate()
    wait_for(lambda: worker.says("worker_draining"), "the worker drains")
    worker.terminate()
    assert worker.wait(LONG_WAIT) == 0
    stack.database.wait_claims(job, 2)
    end_until(argument, lambda: stack.sandbox(job)["status"] == "ready", "the job is ready")
    assert_ready(stack, job, claims=2)
    assert len(stack.database.rows("select 1 from work_heartbeat")) == 1


def test_an_idle_worker_stops_at_once(stack: PrivateStack) -> None:
    worker = stack.start_worker()
    worker.terminate()
    assert worker.wait(LONG_WAIT) == 0
    assert not stack.database.rows("select 1 from work_heartbeat")


def test_a_worker_with_a_number_of_jobs_ends_after_them(stack: PrivateStack) -> None:
    jobs = [stack.post(blueprint()) for _ in range(3)]
    worker = stack.launch_worker("--max-jobs", "2")
    assert worker.wait(LONG_WAIT) == 0
    states = sorted(stack.database.job_status(job) for job in jobs)
    assert states == ["queued", "succeeded", "succeeded"]
    wait_for(lambda: stack.broker.depth() == 1, "one message waits")
    assert not stack.database.rows("select 1 from work_heartbeat")
    stack.start_worker()
    for job in jobs:
        assert_ready(stack, job, claims=1)
