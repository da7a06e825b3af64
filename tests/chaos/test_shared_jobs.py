"""Two workers are offered the same job, and one of them does it."""

from __future__ import annotations

import json

import pytest

from tests.chaos.verdict import assert_ready
from tests.stack.private_stack import UNSUSPICIOUS, PrivateStack
from tests.stack.processes import suspended, wait_for
from tests.stack.sandboxes import blueprint, nap

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


def test_a_message_that_comes_twice_is_worked_on_once(stack: PrivateStack) -> None:
    # No sweeper finds it before its message comes, however late that is.
    late = {"WORKSPACE_BUILD_JOB_QUEUED_OVERDUE_MS": "600000"}
    workers = stack.start_workers(2, **UNSUSPICIOUS, **late)
    script, _ = nap(2)
    job = stack.post(blueprint(setup=script))
    for _ in range(2):
        stack.broker.publish(json.dumps({"jobId": job.job_id}).encode())
    assert_ready(stack, job, claims=1)
    wait_for(
        lambda: sum(worker.says("job_not_claimable") for worker in workers) == 2,
        "both repetitions were seen",
    )


def test_sweepers_and_messages_that_meet_at_a_job_start_it_once(stack: PrivateStack) -> None:
    jobs = [stack.post(blueprint()) for _ in range(4)]
    with suspended(stack.rabbitmq.pid):
        workers = [
            stack.launch_worker(
                WORKSPACE_BUILD_QUEUE_PREFETCH="2", WORKER_SWEEP_INTERVAL_MS="50", **UNSUSPICIOUS
            )
            for _ in range(2)
        ]
        wait_for(
            lambda: sum(worker.says("job_found_by_sweeper") for worker in workers) >= 4,
            "the sweepers have found the jobs whose messages wait in the broker",
        )
    for job in jobs:
        assert_ready(stack, job, claims=1)
    wait_for(
        lambda: sum(worker.says("job_not_claimable") for worker in workers) >= 4,
        "every message was seen",
    )
    assert sum(worker.says('"job_claimed"') for worker in workers) == len(jobs)
