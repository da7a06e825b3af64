"""The database goes away while runs are recorded: they wait in their workspaces."""

from __future__ import annotations

import time

import pytest

from tests.chaos.records import assert_complete, execute, program, ready_workspace, wait_stored
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import runs, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]

MISSED = 10


def test_connections_that_are_cut_again_and_again_lose_and_repeat_nothing(
    stack: PrivateStack,
) -> None:
    job = ready_workspace(stack)
    stack.start_run_worker()
    what = program(6000, seconds=6)
    run = execute(stack, job, what)
    wait_stored(stack, run, 3)
    while runs(what.marker):
        stack.database.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where pid <> pg_backend_pid() and datname = current_database()"
        )
        time.sleep(0.3)
    assert_complete(stack, run, what)


def test_a_run_that_ends_while_the_database_is_down_is_recorded_when_it_is_back(
    stack: PrivateStack,
) -> None:
    job = ready_workspace(stack)
    worker = stack.start_run_worker()
    what = program(4000, seconds=4, held=True)
    run = execute(stack, job, what)
    wait_stored(stack, run, 3)
    stack.postgres.kill()
    stack.engine.let_go(job)
    try:
        wait_for(lambda: not runs(what.marker), "the program went on without a database")
        before = worker.says("heartbeat_failed")
        wait_for(lambda: worker.says("heartbeat_failed") >= before + MISSED, "it misses beats")
    finally:
        stack.postgres.start()
    assert_complete(stack, run, what)
