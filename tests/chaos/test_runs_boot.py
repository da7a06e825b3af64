"""The record of a sandbox's own start, from its build to its end, while run workers come and go."""

from __future__ import annotations

import pytest

from tests.chaos.records import wait_final
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import runs, wait_for
from tests.stack.sandboxes import blueprint, held, nap

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


def _told(stack: PrivateStack, run_id: str) -> bytes:
    rows = stack.database.rows(
        "select body from run_event join runs_run on number = run_number"
        " where id = %s and kind = 4 order by sequence",
        run_id,
    )
    return b"".join(bytes(body) for (body,) in rows)


def test_a_boot_is_recorded_to_its_end_although_its_recorder_is_killed(stack: PrivateStack) -> None:
    script, argument = nap(4)
    stack.start_worker()
    first = stack.start_run_worker()
    job = stack.post(
        blueprint(
            setup=f"echo before; {script}; echo after",
            foreground=f"echo working; {held('echo over')}",
        )
    )
    wait_for(lambda: runs(argument), "the setup step runs")
    wait_for(lambda: b"before\n" in _told(stack, job.run_id), "its output is stored")
    stack.start_run_worker()
    first.kill()
    stack.wait_status(job, "ready")
    stack.engine.let_go(job)
    stack.wait_status(job, "stopped")
    assert wait_final(stack, job.run_id)["status"] == "completed"
    told = _told(stack, job.run_id)
    assert [told.count(word) for word in (b"before\n", b"after\n", b"working\n", b"over\n")] == [
        1
    ] * 4
    assert stack.get(f"/v1/runs/{job.run_id}/loss")["complete"]
