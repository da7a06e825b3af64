"""Run workers die, stand still, or fight for a run: no byte is lost, none is there twice."""

from __future__ import annotations

import pytest

from tests.chaos.records import (
    assert_complete,
    execute,
    holder,
    program,
    ready_workspace,
    wait_final,
    wait_stored,
)
from tests.stack.container_output import heard_to_the_end
from tests.stack.gates import Gate, closed
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import runs, wait_for
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


def test_a_run_is_executed_and_recorded_byte_for_byte(stack: PrivateStack) -> None:
    job = ready_workspace(stack)
    stack.start_run_worker()
    what = program(2000, code=3)
    run = execute(stack, job, what)
    assert_complete(stack, run, what, code=3)


def test_a_run_worker_killed_after_its_claim_is_replaced_and_the_run_starts_once(
    stack: PrivateStack,
) -> None:
    job = ready_workspace(stack)
    what = program(200)
    with closed(Gate.AFTER_RUN_CLAIM, stack.postgres.url) as gate:
        worker = stack.start_run_worker()
        run = execute(stack, job, what)
        gate.wait_reached()
        stack.start_run_worker()
        worker.kill()
    assert_complete(stack, run, what)


@pytest.mark.parametrize("gate", [Gate.BEFORE_STORED, Gate.AFTER_STORED])
def test_a_run_worker_killed_around_a_commit_loses_and_repeats_nothing(
    stack: PrivateStack, gate: Gate
) -> None:
    job = ready_workspace(stack)
    what = program(4000, seconds=4)
    worker = stack.start_run_worker()
    with closed(gate, stack.postgres.url) as stop:
        run = execute(stack, job, what)
        stop.wait_reached()
        stack.start_run_worker()
        worker.kill()
    assert_complete(stack, run, what)


def test_a_run_worker_killed_after_the_last_commit_leaves_nothing_to_do_but_to_tidy(
    stack: PrivateStack,
) -> None:
    job = ready_workspace(stack)
    what = program(100)
    worker = stack.start_run_worker()
    with closed(Gate.AFTER_RUN_SETTLED, stack.postgres.url) as gate:
        run = execute(stack, job, what)
        gate.wait_reached()
        worker.kill()
    assert_complete(stack, run, what)
    (container,) = stack.engine.containers(job)

    def kept() -> bool:
        _, told = heard_to_the_end(container, "/usr/lib/svc/agent", "runs", user="root")
        return run.encode() in told

    assert kept()
    stack.start_run_worker()
    wait_for(lambda: not kept(), "the workspace has forgotten the run")


def test_a_run_worker_killed_in_the_middle_is_replaced_by_one_that_goes_on(
    stack: PrivateStack,
) -> None:
    job = ready_workspace(stack)
    what = program(4000, seconds=4, held=True)
    stack.start_run_worker()
    stack.start_run_worker()
    run = execute(stack, job, what)
    wait_stored(stack, run, 3)
    killed = holder(stack, run)
    killed.kill()
    wait_for(lambda: holder(stack, run) is not killed, "another one is at the run")
    stack.engine.let_go(job)
    assert_complete(stack, run, what)


def test_a_run_worker_that_stands_still_is_replaced_and_writes_nothing_when_it_wakes_up(
    stack: PrivateStack,
) -> None:
    job = ready_workspace(stack)
    what = program(4000, seconds=4, held=True)
    first = stack.start_run_worker()
    run = execute(stack, job, what)
    wait_stored(stack, run, 3)
    second = stack.start_run_worker()
    first.freeze()
    wait_for(lambda: holder(stack, run) is second, "the second one is at the run")
    first.thaw()
    stack.engine.let_go(job)
    assert_complete(stack, run, what)
    wait_for(
        lambda: first.says("run_lost") or first.says("run_given_back"), "the first one gave up"
    )


def test_a_run_worker_that_is_asked_to_stop_gives_its_runs_away_at_once(
    stack: PrivateStack,
) -> None:
    job = ready_workspace(stack)
    what = program(4000, seconds=4, held=True)
    first = stack.start_run_worker()
    run = execute(stack, job, what)
    wait_stored(stack, run, 3)
    second = stack.start_run_worker()
    first.terminate()
    assert first.wait(LONG_WAIT) == 0
    wait_for(lambda: holder(stack, run) is second, "the second one is at the run")
    assert runs(what.marker)
    stack.engine.let_go(job)
    assert_complete(stack, run, what)


def test_several_workers_and_overlapping_runs_keep_every_record_whole(stack: PrivateStack) -> None:
    job = ready_workspace(stack)
    stack.start_run_worker()
    stack.start_run_worker()
    programs = [program(3000, seconds=2), program(3000, seconds=2), program(0)]
    ids = [execute(stack, job, what) for what in programs]
    for run, what in zip(ids, programs, strict=True):
        assert_complete(stack, run, what)


def test_a_run_whose_end_is_asked_for_is_stopped_and_recorded_to_its_end(
    stack: PrivateStack,
) -> None:
    job = ready_workspace(stack)
    stack.start_run_worker()
    what = program(100_000, seconds=600)
    run = execute(stack, job, what)
    wait_stored(stack, run, 5)
    stack.database.execute("update runs_run set cancel_requested_at = now() where id = %s", run)
    assert wait_final(stack, run)["status"] == "cancelled"
    wait_for(lambda: not runs(what.marker), "the program has ended")
    assert stack.get(f"/v1/runs/{run}/loss")["complete"]
