"""What the gateway needs goes away and comes back: sessions go on, and nothing of them is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.gateways import Entrance, entrance_of
from tests.chaos.records import output, wait_final, wait_stored
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import wait_for
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]

TALK = 'echo begun; while read -r line; do echo "$line"; done; echo ended'
TOLD = b"".join(b"line %d\n" % number for number in range(2000))


@pytest.fixture
def entrance(stack: PrivateStack) -> Iterator[Entrance]:
    """A workspace that somebody may enter."""
    with entrance_of(stack) as made:
        yield made


def assert_whole(stack: PrivateStack, run: str) -> None:
    """The record has everything that was said."""
    assert wait_final(stack, run)["status"] == "completed"
    assert output(stack, run) == b"begun\n" + TOLD + b"ended\n"
    assert stack.get(f"/v1/runs/{run}/loss")["complete"]


# ---------------------------------------------------------------- the workspace


def test_somebody_whose_workspace_is_killed_is_told_and_the_run_ends(
    stack: PrivateStack, entrance: Entrance
) -> None:
    stack.start_run_worker()
    with entrance.client.begun("echo begun; exec sleep 600") as begun:
        run = entrance.wait_running()
        wait_stored(stack, run, 2)
        (container,) = stack.engine.containers(entrance.job)
        container.kill()
        _, errors = begun.process.communicate(timeout=LONG_WAIT)
    assert begun.process.returncode == 255
    assert b"workspace" in errors
    assert wait_final(stack, run)["status"] == "failed"
    loss = stack.get(f"/v1/runs/{run}/loss")
    assert not loss["complete"]
    assert b"begun\n".startswith(output(stack, run))


def test_a_workspace_that_is_not_there_any_more_cannot_be_entered(
    stack: PrivateStack, entrance: Entrance
) -> None:
    stack.start_run_worker()
    (container,) = stack.engine.containers(entrance.job)
    container.kill()
    done = entrance.client.command("echo in")
    assert (done.code, done.out) == (255, b"")
    assert "workspace" in done.err
    for run, _ in entrance.runs():
        assert wait_final(stack, run)["status"] in {"failed", "cancelled"}


# ---------------------------------------------------------------- the API


def test_nobody_is_let_in_while_the_api_is_down_and_everybody_afterwards(
    stack: PrivateStack, entrance: Entrance
) -> None:
    stack.kill_api()
    done = entrance.client.command("echo in")
    assert (done.code, done.out) == (255, b"")
    assert "control plane cannot be reached" in done.err
    assert entrance.runs() == []
    stack.start_api()
    assert entrance.client.said("echo in") == b"in\n"


def test_a_session_goes_on_without_the_api_and_its_record_is_whole(
    stack: PrivateStack, entrance: Entrance
) -> None:
    stack.start_run_worker()
    with entrance.client.begun(TALK) as begun:
        run = entrance.wait_running()
        stack.kill_api()
        out, _ = begun.process.communicate(TOLD, 120)
        assert (begun.process.returncode, out) == (0, TOLD + b"ended\n")
    stack.start_api()
    assert_whole(stack, run)


# ---------------------------------------------------------------- broker, worker, database


def test_people_enter_while_the_broker_is_down(stack: PrivateStack, entrance: Entrance) -> None:
    stack.start_run_worker()
    stack.rabbitmq.stop()
    with entrance.client.begun(TALK) as begun:
        run = entrance.wait_running()
        out, _ = begun.process.communicate(TOLD, 120)
        assert (begun.process.returncode, out) == (0, TOLD + b"ended\n")
    assert_whole(stack, run)
    stack.rabbitmq.start()


def test_what_happens_without_a_run_worker_is_recorded_afterwards(
    stack: PrivateStack, entrance: Entrance
) -> None:
    with entrance.client.begun(TALK) as begun:
        run = entrance.wait_running()
        out, _ = begun.process.communicate(TOLD, 120)
        assert (begun.process.returncode, out) == (0, TOLD + b"ended\n")
    assert entrance.runs() == [(run, "running")]
    stack.start_run_worker()
    assert_whole(stack, run)


def test_a_run_worker_killed_during_a_session_is_replaced_and_nothing_is_lost(
    stack: PrivateStack, entrance: Entrance
) -> None:
    worker = stack.start_run_worker()
    with entrance.client.begun(TALK) as begun:
        run = entrance.wait_running()
        wait_stored(stack, run, 2)
        worker.kill()
        assert begun.process.stdin is not None
        begun.process.stdin.write(TOLD[: len(TOLD) // 2])
        begun.process.stdin.flush()
        stack.start_run_worker()
        wait_for(lambda: len(output(stack, run)) > 1000, "the second one records")
        out, _ = begun.process.communicate(TOLD[len(TOLD) // 2 :], 120)
        assert (begun.process.returncode, out) == (0, TOLD + b"ended\n")
    assert_whole(stack, run)


def test_a_session_outlives_a_restart_of_the_database(
    stack: PrivateStack, entrance: Entrance
) -> None:
    stack.start_run_worker()
    with entrance.client.begun(TALK) as begun:
        run = entrance.wait_running()
        stack.postgres.stop()
        assert begun.process.stdin is not None
        begun.process.stdin.write(TOLD[: len(TOLD) // 2])
        begun.process.stdin.flush()
        stack.postgres.start()
        out, _ = begun.process.communicate(TOLD[len(TOLD) // 2 :], 120)
        assert (begun.process.returncode, out) == (0, TOLD + b"ended\n")
    assert_whole(stack, run)
