"""One program of a run: when it wants to be looked at again."""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path

from runs.agent.execution.leader import Audience, Leader, Surroundings
from runs.agent.execution.runspec import Program
from runs.agent.process.program import Exit
from runs.agent.process.reaper import Reaper
from tests.runs.agent.booted import eventually
from tests.runs.agent.observed import ACCOUNT, Watching


def test_what_outlives_a_hangup_is_looked_at_now_and_then_and_not_all_the_time(
    tmp_path: Path,
) -> None:
    leader = started(tmp_path, "(trap : HUP; touch deaf; while :; do sleep 0.01; done) & read line")
    assert leader._child is not None
    session = leader._child.pid
    try:
        eventually((tmp_path / "deaf").exists)
        leader.hang_up(60.0)
        leader._child.exit = Exit.from_wait_status(os.waitpid(session, 0)[1])
        leader.supervise(time.monotonic(), True, None)
        assert leader.exit is not None
        # Its output has been given up then, and the grace is not over.
        later = time.monotonic() + 10.0
        leader.supervise(later, True, None)
        assert not leader.is_over(later)
        assert all(due > later for due in leader.deadlines() if due is not None)
    finally:
        os.killpg(session, signal.SIGKILL)
    leader.finish()


def test_a_terminal_that_nobody_has_open_is_not_looked_at_while_nothing_may_be_read(
    tmp_path: Path,
) -> None:
    leader = started(tmp_path, "read line")
    assert leader._child is not None
    now = time.monotonic()
    for output in leader._outputs:
        output.retry_at = now - 1.0
    assert leader.watches(now, False, False) == []
    assert not [due for due in leader.deadlines() if due is not None]
    leader._child.signal_group(signal.SIGKILL)
    os.waitpid(leader._child.pid, 0)
    leader.finish()


def started(folder: Path, script: str) -> Leader:
    """A shell with an input that does not end."""
    watching = Watching(folder, folder)
    around = Surroundings(
        recording=watching.recording,
        observers=watching.observers,
        reaper=Reaper(),
        account=ACCOUNT,
        env={"PATH": os.environ["PATH"], "SVC_RUN_ID": str(uuid.uuid4())},
        cwd=str(folder),
        input_policy="off",
    )
    return Leader(Program(("sh", "-c", script), {}), around, Audience())
