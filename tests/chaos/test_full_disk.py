"""The disk of the database is full: nothing is begun by halves, and it goes on by itself."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator

import pytest
import requests

from tests.chaos.test_transitions import stop, wait_until
from tests.chaos.verdict import assert_nothing_open, assert_ready
from tests.stack.disks import fill, read_only, small_disk
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import wait_for
from tests.stack.sandboxes import blueprint, started
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]
BIG = 16_000  # as large as a step may be, so that it needs room of its own


@pytest.fixture(scope="module")
def small_services() -> Iterator[PrivateStack]:
    """A stack whose database and broker have small disks of their own."""
    stack = PrivateStack()
    with (
        small_disk(stack.root / "postgres", "400m"),
        small_disk(stack.root / "rabbitmq", "1g"),
    ):
        try:
            stack.build()
            yield stack
        finally:
            stack.close()
    shutil.rmtree(stack.root, ignore_errors=True)


@pytest.fixture
def small(small_services: PrivateStack) -> Iterator[PrivateStack]:
    """This stack, cleaned up after each test."""
    small_services.begin()
    yield small_services
    small_services.end()


def test_a_folder_of_builds_that_may_only_be_read_is_told_and_used_once_it_may_be_written(
    stack: PrivateStack,
) -> None:
    worker = stack.start_worker()
    wait_for((stack.data / "builds").is_dir, "its folder is there")
    with read_only(stack.data):
        job = stack.post(blueprint(install="true"))
        shown = stack.wait_status(job, "failed")
        assert shown["error"]["code"] == "build-write-context-failed", shown["error"]
        assert "Read-only file system" in shown["error"]["message"]
    assert_ready(stack, stack.post(blueprint(install="true")), claims=1)
    assert worker.exit_code is None


def test_a_full_folder_of_builds_fails_builds_and_hinders_no_stop(stack: PrivateStack) -> None:
    with small_disk(stack.data, "8m"):
        worker = stack.start_worker()
        running = stack.post(blueprint())
        stack.wait_status(running, "ready")
        ballast = fill(stack.data)
        job = stack.post(blueprint(install="true"))
        shown = stack.wait_status(job, "failed")
        assert shown["error"]["code"] == "build-write-context-failed", shown["error"]
        assert "No space left on device" in shown["error"]["message"]
        stop(stack, running)
        wait_until(stack, running, "stopped")
        ballast.unlink()
        assert_ready(stack, stack.post(blueprint(install="true")), claims=1)
        assert worker.exit_code is None


def test_requests_are_refused_while_the_databases_disk_is_full_and_taken_afterwards(
    small: PrivateStack,
) -> None:
    worker = small.start_worker()
    ballast = fill(small.root / "postgres")
    accepted, refused = [], None
    for _ in range(50):
        spec = blueprint()
        spec["lifecycle"]["setup"][0]["run"] += f"\n: {secrets.token_hex(BIG // 2)}"
        refused = small.send(small.request_body(spec))
        if refused.status_code != 202:
            break
        accepted.append(started(refused.json()))
    assert refused is not None
    assert refused.status_code == 503, refused.text
    assert refused.json()["code"] == "database-unavailable"
    assert requests.get(f"{small.api}/healthz", timeout=LONG_WAIT).status_code == 200

    ballast.unlink()
    # One that ended for want of room is started by whoever runs it.
    small.postgres.start()
    wait_for(lambda: requests.get(f"{small.api}/readyz", timeout=LONG_WAIT).ok, "it is well again")
    fresh = small.post(blueprint())
    for job in [*accepted, fresh]:
        small.wait_status(job, "ready")
    assert_ready(small, fresh, claims=1)
    assert_nothing_open(small)
    assert worker.exit_code is None
    (count,) = small.database.one("select count(*) from workspaces_workspace")
    assert count == len(accepted) + 2  # with the one that the stack began with


def test_a_broker_that_calls_for_room_hinders_nobody(small: PrivateStack) -> None:
    worker = small.start_worker()
    # It does so when less than 500 MB are left (deploy/services/rabbitmq.py).
    ballast = small.root / "rabbitmq" / "ballast"
    with ballast.open("wb") as file:
        for _ in range(700):
            file.write(bytes(1 << 20))
    log = small.rabbitmq.log
    wait_for(lambda: "disk resource limit alarm set" in log.read_text(), "it calls for room")

    assert_ready(small, small.post(blueprint()), claims=1)

    ballast.unlink()
    wait_for(lambda: "disk resource limit alarm cleared" in log.read_text(), "it has room")
    assert_ready(small, small.post(blueprint()), claims=1)
    assert worker.exit_code is None
