"""What becomes of messages, good and bad."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.chaos.verdict import assert_ended, assert_ready
from tests.stack.broker import DEAD_LETTERS
from tests.stack.free_ports import free_port
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import wait_for
from tests.stack.sandboxes import blueprint

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]

MALFORMED = (
    b"",
    b"not json",
    b"\xff\xfe",
    b"[]",
    b"null",
    b"{}",
    b'{"jobId": 7}',
    b'{"jobId": "not-a-uuid"}',
    b'{"jobId": "6f1e3c1a-6a53-4c39-9a9e-0d0c5d8f8d11", "more": true}',
    b"[" * 100_000,
)


def test_messages_that_are_not_ours_become_dead_letters_and_the_worker_lives(
    stack: PrivateStack,
) -> None:
    worker = stack.start_worker()
    for body in MALFORMED:
        stack.broker.publish(body)
    wait_for(lambda: stack.broker.depth(DEAD_LETTERS) == len(MALFORMED), "all are dead letters")
    assert stack.broker.dead_letters() == list(MALFORMED)
    stack.broker.publish(json.dumps({"jobId": str(uuid.uuid4())}).encode())
    wait_for(lambda: worker.says("job_not_claimable"), "the unknown job is seen")
    assert_ready(stack, stack.post(blueprint()), claims=1)
    worker.kill()
    assert (stack.broker.depth(), stack.broker.depth(DEAD_LETTERS)) == (0, 0)


def test_a_failed_job_leaves_a_dead_letter_and_a_successful_one_nothing(
    stack: PrivateStack,
) -> None:
    worker = stack.start_worker()
    good, bad = stack.post(blueprint()), stack.post(blueprint(install="exit 3"))
    assert_ready(stack, good, claims=1)
    shown = assert_ended(stack, bad, "failed", code="build-command-failed", claims=1)
    assert "custom.sh" in shown["error"]["message"]
    wait_for(lambda: stack.broker.depth(DEAD_LETTERS) == 1, "the dead letter")
    worker.kill()
    assert stack.broker.depth() == 0
    assert stack.broker.dead_letters() == [json.dumps({"jobId": bad.job_id}).encode()]


def test_a_registry_that_is_down_fails_the_push_and_nothing_else(stack: PrivateStack) -> None:
    port = free_port()
    worker = stack.start_worker(
        REGISTRY_BASE_URL=f"http://127.0.0.1:{port}", REGISTRY_PUSH_REGISTRY=f"127.0.0.1:{port}"
    )
    job = stack.post(blueprint(install="true"))
    assert_ended(stack, job, "failed", code="push-failed", claims=1)
    worker.kill()
    stack.start_worker()
    assert_ready(stack, stack.post(blueprint()), claims=1)
