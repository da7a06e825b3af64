"""RabbitMQ goes away and comes back: messages are hints, so nothing is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.chaos.verdict import assert_ended, assert_nothing_open, assert_ready
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import end, runs, suspended, wait_for
from tests.stack.sandboxes import blueprint, hold, started
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


def test_idle_workers_come_back_after_the_broker_restarted(stack: PrivateStack) -> None:
    # The message is what starts it, however long it takes.
    worker = stack.start_worker(WORKSPACE_BUILD_JOB_QUEUED_OVERDUE_MS="600000")
    stack.rabbitmq.restart()
    wait_for(lambda: worker.says("consuming") >= 2, "the worker consumes again")
    job = stack.post(blueprint())
    assert_ready(stack, job, claims=1)
    assert not worker.says("job_found_by_sweeper")


def test_a_job_goes_on_while_the_broker_is_killed_and_comes_back(stack: PrivateStack) -> None:
    worker = stack.start_worker()
    script, argument = hold()
    job = stack.post(blueprint(install=script))
    wait_for(lambda: runs(argument), "the build is at its install script")
    stack.rabbitmq.kill()
    refused = stack.send(stack.request_body(blueprint()))
    assert (refused.status_code, refused.json()["code"]) == (502, "queue-publish-failed")
    stack.rabbitmq.start()
    # The message was not acknowledged, so it comes again.
    wait_for(lambda: worker.says("consuming") >= 2, "the worker consumes again")
    end(argument)
    assert_ready(stack, job, claims=1)
    wait_for(lambda: worker.says("job_not_claimable"), "the repeated message is settled")
    assert_nothing_open(stack)
    failed = started({**refused.json(), "repository": "", "tag": ""})
    assert stack.sandbox(failed)["error"]["code"] == "queue-publish-failed"


def test_a_sandbox_that_could_not_be_queued_is_started_when_its_request_is_repeated(
    stack: PrivateStack,
) -> None:
    stack.rabbitmq.kill()
    body = stack.request_body(blueprint())
    refused = stack.send(body, key="chaos-key")
    assert refused.status_code == 502
    job = started({**refused.json(), "repository": body["repository"], "tag": body["tag"]})
    stack.rabbitmq.start()
    stack.start_worker()
    assert_ended(stack, job, "failed", code="queue-publish-failed", claims=0)
    again = stack.send(body, key="chaos-key")
    assert (again.status_code, again.json()["sandboxId"]) == (202, job.sandbox_id)
    names = {"repository": body["repository"], "tag": body["tag"]}
    stack.wait_status(started({**again.json(), **names}), "ready")


@pytest.fixture
def impatient(stack: PrivateStack) -> Iterator[PrivateStack]:
    """Its API gives up a broker that says nothing, which elsewhere no slowness brings about."""
    stack.kill_api()
    stack.start_api(RABBITMQ_CONNECT_TIMEOUT_MS="1000")
    yield stack
    stack.kill_api()


def test_a_broker_that_stands_still_keeps_no_client_waiting_for_long(
    impatient: PrivateStack,
) -> None:
    with suspended(impatient.rabbitmq.pid):
        refused = impatient.send(impatient.request_body(blueprint()))  # while it stands still
    assert (refused.status_code, refused.json()["code"]) == (502, "queue-publish-failed")
    assert_nothing_open(impatient)


def test_a_job_that_a_worker_found_before_its_message_failed_goes_on(stack: PrivateStack) -> None:
    worker = stack.start_worker(
        WORKSPACE_BUILD_JOB_QUEUED_OVERDUE_MS="50", WORKER_SWEEP_INTERVAL_MS="50"
    )
    assert stack.rabbitmq.pid is not None
    with ThreadPoolExecutor(1) as pool:
        os.kill(stack.rabbitmq.pid, signal.SIGSTOP)
        try:
            posted = pool.submit(stack.post, blueprint())
            wait_for(lambda: worker.says('"job_claimed"'), "a worker is at the job")
        finally:
            stack.rabbitmq.kill()  # now the API knows that its message failed
        job = posted.result(LONG_WAIT)
    stack.rabbitmq.start()
    assert worker.says("job_found_by_sweeper") == 1
    assert_ready(stack, job, claims=1)
