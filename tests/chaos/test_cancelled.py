"""An operator cancels a job that a worker is at."""

from __future__ import annotations

import pytest

from tests.chaos.verdict import assert_ended, assert_ready
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import runs, wait_for
from tests.stack.sandboxes import Started, blueprint, nap

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


def _cancel(stack: PrivateStack, job: Started) -> None:
    """Do what the admin's action does."""
    stack.manage(
        *("shell", "-c"),
        "from workspaces.models import BuildJob; "
        "from workspaces.lifecycle.start import cancel_job; "
        f"assert cancel_job(BuildJob.objects.get(pk='{job.job_id}'), reason='No longer wanted.')",
    )


def test_a_build_that_is_cancelled_is_killed_and_leaves_nothing(stack: PrivateStack) -> None:
    worker = stack.start_worker()
    script, argument = nap(60)
    job = stack.post(blueprint(install=script))
    wait_for(lambda: runs(argument), "the build is at its install script")
    _cancel(stack, job)
    wait_for(lambda: not runs(argument), "the build is killed")
    shown = assert_ended(stack, job, "cancelled", claims=1)
    assert "No longer wanted." in shown["reason"]["message"]
    wait_for(lambda: worker.says("job_lost"), "the worker has let go")
    assert stack.events(job).count("attempt.cancelled") == 1
    assert "attempt.succeeded" not in stack.events(job)
    assert_ready(stack, stack.post(blueprint()), claims=1)


def test_a_launch_that_is_cancelled_leaves_no_container(stack: PrivateStack) -> None:
    stack.start_worker()
    script, argument = nap(60)
    job = stack.post(blueprint(setup=script))
    wait_for(lambda: runs(argument), "the setup step runs")
    _cancel(stack, job)
    wait_for(lambda: not runs(argument), "the setup step is killed")
    assert_ended(stack, job, "cancelled", claims=1, tags=1)
    assert "runtime.running" not in stack.events(job)


def test_a_job_that_is_cancelled_while_nobody_is_at_it_is_not_started(stack: PrivateStack) -> None:
    job = stack.post(blueprint())
    _cancel(stack, job)
    worker = stack.start_worker()
    wait_for(lambda: worker.says("job_not_claimable"), "the message is settled")
    assert_ended(stack, job, "cancelled", claims=0)
