"""The engine is down while something is wanted of it, and is there again later."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.chaos.test_transitions import (
    assert_deleted,
    assert_stopped,
    delete,
    start,
    stop,
    wait_until,
    workspace,
)
from tests.chaos.verdict import assert_ended, assert_nothing_open, assert_ready
from tests.stack.engine_switch import EngineSwitch, engine_switch
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import runs, wait_for
from tests.stack.sandboxes import Started, blueprint, nap

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def switch() -> Iterator[EngineSwitch]:
    """The engine behind a switch, for the workers of a test."""
    socket_path = os.environ.get("CONTAINER_SOCKET_PATH", "/var/run/docker.sock")
    with engine_switch(os.environ.get("DOCKER_HOST", f"unix://{socket_path}")) as switch:
        yield switch


def running(stack: PrivateStack, switch: EngineSwitch, **runtime: str) -> Started:
    """Return a workspace that runs; its worker goes on."""
    stack.start_worker(DOCKER_HOST=switch.url)
    job = stack.post(blueprint(**runtime))
    stack.wait_status(job, "ready")
    return job


def waits_for_the_engine(stack: PrivateStack, job: Started) -> Callable[[], bool]:
    """Return whether the workspace says that the engine is what it waits for."""

    def says() -> bool:
        return "adapter-unavailable" in stack.get(workspace(job))["reason"]["message"]

    return says


@pytest.mark.parametrize("wanted", ["stop", "delete"])
def test_what_is_wanted_of_an_engine_that_is_down_is_done_when_it_is_back(
    stack: PrivateStack, switch: EngineSwitch, wanted: str
) -> None:
    job = running(stack, switch, persistence="persistent")
    switch.off()
    (stop if wanted == "stop" else delete)(stack, job)
    wait_for(waits_for_the_engine(stack, job), "it says what it waits for")
    assert stack.engine.containers(job)
    # Asked for again, it is accepted again, and done once.
    (stop if wanted == "stop" else delete)(stack, job)

    switch.on()
    (assert_stopped if wanted == "stop" else assert_deleted)(stack, job)


def test_a_start_while_the_engine_is_down_says_so_and_the_next_one_works(
    stack: PrivateStack, switch: EngineSwitch
) -> None:
    job = running(stack, switch)
    stop(stack, job)
    wait_until(stack, job, "stopped")
    switch.off()
    again = start(stack, job)
    shown = stack.wait_status(again, "failed")
    assert shown["error"]["code"] == "adapter-unavailable", shown["error"]
    assert_nothing_open(stack)
    switch.on()
    stack.wait_status(start(stack, job), "ready")


def test_a_build_from_which_the_engine_goes_away_says_so_and_leaves_nothing(
    stack: PrivateStack, switch: EngineSwitch
) -> None:
    stack.start_worker(DOCKER_HOST=switch.url)
    script, argument = nap(300)
    job = stack.post(blueprint(install=script))
    wait_for(lambda: runs(argument), "the build is at its install script")
    switch.off()
    assert stack.wait_status(job, "failed")["error"]["code"] == "adapter-unavailable"
    switch.on()
    # The engine has gone on with the script, and is told once it can be.
    assert_ended_for_want_of_the_engine(stack, job)
    wait_for(lambda: not runs(argument), "the script has been ended")
    assert_ready(stack, stack.post(blueprint()), claims=1)


def assert_ended_for_want_of_the_engine(stack: PrivateStack, job: Started) -> Any:
    return assert_ended(stack, job, "failed", code="adapter-unavailable", claims=1)


def test_workspaces_of_an_engine_that_is_down_are_not_taken_for_lost(
    stack: PrivateStack, switch: EngineSwitch
) -> None:
    worker = stack.start_worker(DOCKER_HOST=switch.url)
    job, other = stack.post(blueprint()), stack.post(blueprint())
    for one in (job, other):
        stack.wait_status(one, "ready")
    (container,) = stack.engine.containers(job)
    switch.off()
    wait_for(lambda: worker.says('"task": "reconcile"') >= 3, "the worker has looked")
    assert stack.sandbox(job)["status"] == "ready"
    switch.on()
    # One that is lost in earnest shows when the worker has looked at the engine again.
    stack.engine.containers(other)[0].remove(force=True)
    assert stack.wait_status(other, "failed")["error"]["code"] == "runtime-lost"
    assert_ready(stack, job, claims=1)
    (still,) = stack.engine.containers(job)
    assert still.id == container.id
