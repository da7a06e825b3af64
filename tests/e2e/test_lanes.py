"""Starts of images that exist do not wait for builds, and builds wait for each other."""

from __future__ import annotations

import uuid

import pytest

from tests.conftest import OWNER
from tests.stack.service import Stack, Started, install
from tests.stack.worker_process import dead_letters, eventually

pytestmark = pytest.mark.docker


def read(stack: Stack, started: Started) -> dict[str, object]:
    body: dict[str, object] = stack.api.get(f"/v1/sandboxes/{started.answer['sandboxId']}").body
    return body


def until(stack: Stack, started: Started, code: str) -> None:
    """Wait until the sandbox's reason has a code."""

    def there() -> bool:
        reason = read(stack, started).get("reason")
        return isinstance(reason, dict) and reason["code"] == code

    eventually(there, what=f"the reason {code}: {read(stack, started)}")


def stop(stack: Stack, started: Started) -> None:
    stack.api.post(f"/v1/workspaces/{started.answer['workspaceId']}/stop", {"ownerUserId": OWNER})


def test_a_start_does_not_wait_for_the_build_that_has_the_only_slot(stack: Stack) -> None:
    first = stack.ready({})
    long = {"harness": install(f"echo {uuid.uuid4()}; sleep 300")}
    building, waiting = stack.ask(long), None
    try:
        eventually(lambda: building.job.lane == "build", what="the build has its slot")
        waiting = stack.ask({"harness": install(f"echo {uuid.uuid4()}")})
        until(stack, waiting, "waiting-for-build-slot")

        again = stack.ready({})

        assert building.job.status == "running"
        assert waiting.job.status == "queued"
        assert again.job.reused
        assert again.job.published_digest == first.job.published_digest
    finally:
        stop(stack, building)
    eventually(lambda: read(stack, waiting)["status"] == "ready", what="the other build is done")
    assert waiting.job.attempt_count == 2


def test_a_boot_that_fails_after_its_message_was_acknowledged_leaves_a_dead_letter(
    stack: Stack,
) -> None:
    failed = stack.failed({"lifecycle": {"setup": [{"run": "exit 3"}]}})
    assert read(stack, failed)["status"] == "failed"
    eventually(lambda: failed.answer["jobId"] in dead_letters(), what="the dead letter")
