"""Stopping a run from outside: it reaches everything of that run, and nothing else."""

from __future__ import annotations

import signal
import stat
import subprocess
import uuid

import pytest

from runs.agent.execution.stop import kill_all
from runs.agent.record.frames import Kind, Stream
from tests.runs.agent.booted import Workspace, eventually
from tests.runs.agent.recorded import Runs, is_alive


@pytest.fixture
def runs(workspace: Workspace) -> Runs:
    """A workspace in which runs can be started."""
    return Runs(workspace)


def test_a_stopped_run_is_cancelled_with_all_that_it_has_started(runs: Runs) -> None:
    run_id = runs.start("sh", "-c", "setsid sleep 600 & echo $!; wait")
    runs.wait_for_output(run_id, b"\n")
    assert runs.stop(run_id) == 0
    record = runs.sealed(run_id)
    assert record.exit == {"code": None, "signal": "SIGTERM", "reason": "cancelled"}
    assert record.seal["reason"] == "stopped"
    assert not is_alive(int(record.stream(Stream.STDOUT)))


def test_what_ignores_term_is_killed_after_the_grace_that_was_given(runs: Runs) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 1; done"
    run_id = runs.start("sh", "-c", script, graceSeconds=600)
    runs.wait_for_output(run_id, b"ready")
    assert runs.stop(run_id, "--grace", "0.2") == 0
    record = runs.sealed(run_id)
    assert record.exit == {"code": None, "signal": "SIGKILL", "reason": "cancelled"}
    assert [meta["reason"] for meta in record.metas(Kind.SIGNAL_SENT)] == ["cancelled"] * 2


def test_a_second_stop_may_shorten_the_grace(runs: Runs) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 1; done"
    run_id = runs.start("sh", "-c", script, graceSeconds=600)
    runs.wait_for_output(run_id, b"ready")
    assert runs.stop(run_id) == 0
    eventually(lambda: runs.record(run_id).of(Kind.SIGNAL_SENT))
    assert runs.stop(run_id, "--grace", "0") == 0
    assert runs.sealed(run_id).exit["signal"] == "SIGKILL"


def test_a_stopped_program_that_was_suspended_ends(runs: Runs) -> None:
    run_id = runs.start("sh", "-c", "echo ready; kill -STOP $$; sleep 600")
    runs.wait_for_output(run_id, b"ready")
    assert runs.stop(run_id) == 0
    assert runs.sealed(run_id).exit["signal"] == "SIGTERM"


def test_other_runs_go_on(runs: Runs) -> None:
    script = "echo ready; while [ ! -e go ]; do sleep 0.01; done"
    kept, stopped = runs.start("sh", "-c", script), runs.start("sh", "-c", script)
    for run_id in (kept, stopped):
        runs.wait_for_output(run_id, b"ready")
    assert runs.stop(stopped) == 0
    runs.sealed(stopped)
    runs.workspace.go()
    assert runs.sealed(kept).exit == {"code": 0, "signal": None, "reason": "exited"}


def test_a_run_that_is_not_open_cannot_be_stopped(runs: Runs) -> None:
    ended = runs.start("true")
    runs.sealed(ended)
    eventually(lambda: not (runs.root / ended / "control.sock").exists())
    for run_id in (ended, str(uuid.uuid4())):
        assert runs.stop(run_id) == 4


def test_only_the_agents_user_can_reach_the_control_socket(runs: Runs) -> None:
    run_id = runs.start("sh", "-c", "echo ready; exec sleep 600")
    runs.wait_for_output(run_id, b"ready")
    socket = (runs.root / run_id / "control.sock").stat()
    assert stat.S_ISSOCK(socket.st_mode)
    assert stat.S_IMODE(socket.st_mode) == 0o600
    assert stat.S_IMODE((runs.root / run_id).stat().st_mode) == 0o700
    assert runs.stop(run_id) == 0
    runs.sealed(run_id)


def test_killing_one_process_of_a_run_kills_those_of_its_group_that_nobody_has_listed() -> None:
    script = "for i in 1 2 3; do sleep 600 & echo $!; done; echo; wait"
    with subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        children = [int(line) for line in iter(leader.stdout.readline, b"\n")]
        kill_all([children[0]])
        # The pipe ends when the last of those that hold it is gone.
        assert leader.stdout.read() == b""
        assert leader.wait() == -signal.SIGKILL


def test_our_own_group_is_never_killed_as_one() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        kill_all([child.pid])
        assert child.wait() == -signal.SIGKILL
