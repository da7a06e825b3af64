"""Which processes are a run's, as polling sees them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from runs.agent.observe.files import GATHER_SECONDS
from runs.agent.observe.processes import Processes
from runs.agent.record.frames import Confidence, Kind, Method
from runs.agent.record.unrecorded import Unrecorded
from tests.runs.agent.booted import eventually
from tests.runs.agent.observed import RUN, Watching


def _until(watching: Watching, holds: Callable[[], bool]) -> None:
    def polled() -> bool:
        watching.observers.tick()
        return holds()

    eventually(polled)


def _argvs(watching: Watching) -> list[list[str]]:
    return [meta["argv"] for meta in watching.metas(Kind.PROCESS_STARTED)]


def test_a_descendant_is_recorded_with_its_parent_and_its_end(tmp_path: Path) -> None:
    watching = Watching(tmp_path, tmp_path, processes=True)
    watching.observers.before_start()
    with subprocess.Popen(["sh", "-c", "sleep 1000; true"], start_new_session=True) as leader:
        number = watching.recording.process_started(
            pid=leader.pid, argv=["sh"], cwd="/", leader=True, method=Method.PIPE
        )
        watching.observers.leader_started(leader.pid, number)
        _until(watching, lambda: ["sleep", "1000"] in _argvs(watching))
        (_, child) = watching.events(Kind.PROCESS_STARTED)
        (_, meta) = watching.metas(Kind.PROCESS_STARTED)
        assert (child.method, child.confidence) == (Method.POLL, Confidence.INFERRED)
        assert (meta["parent"], meta["leader"]) == (number, False)
        assert set(watching.observers.pids()) == {leader.pid, meta["pid"]}
        os.killpg(leader.pid, 9)
    _until(watching, lambda: bool(watching.events(Kind.PROCESS_EXITED)))
    (ended,) = watching.events(Kind.PROCESS_EXITED)
    assert ended.process == child.process
    watching.observers.finish()
    watching.close()


def test_an_orphan_is_known_by_its_environment_and_a_stranger_is_not(tmp_path: Path) -> None:
    watching = Watching(tmp_path, tmp_path, processes=True)
    watching.observers.before_start()
    with subprocess.Popen(["sleep", "1001"], start_new_session=True) as leader:
        watching.observers.leader_started(leader.pid, 1)
        with (
            subprocess.Popen(
                ["sleep", "1002"],
                start_new_session=True,
                env={"PATH": os.environ["PATH"], "SVC_RUN_ID": RUN},
            ) as orphan,
            subprocess.Popen(["sleep", "1003"], start_new_session=True) as stranger,
        ):
            _until(watching, lambda: ["sleep", "1002"] in _argvs(watching))
            watching.observers.finish()
            assert set(watching.observers.pids()) == {leader.pid, orphan.pid}
            assert ["sleep", "1003"] not in _argvs(watching)
            stranger.kill()
            orphan.kill()
        leader.kill()
    watching.close()


def test_the_number_of_a_session_in_which_nothing_is_left_makes_nobody_a_process_of_the_run() -> (
    None
):
    processes = Processes(Unrecorded(), "a run of its own")
    processes.prepare()
    script = "env -i sleep 1005 & echo $!"
    with subprocess.Popen(
        ["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE
    ) as leader:
        processes.leader_started(leader.pid, 1)
        assert leader.stdout is not None
        background = int(leader.stdout.readline())
    processes.finish()
    assert processes.pids() == [background]
    assert processes._sessions == {leader.pid}
    os.kill(background, signal.SIGKILL)
    eventually(lambda: not processes.pids())
    processes.finish()
    processes.finish()
    assert processes._sessions == set()


def test_who_can_see_nothing_for_a_while_knows_the_processes_of_the_run_again() -> None:
    processes = Processes(Unrecorded(), "a run of its own")
    processes.prepare()
    script = "env -i sleep 1006 & echo $!"
    with subprocess.Popen(
        ["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE
    ) as leader:
        processes.leader_started(leader.pid, 1)
        assert leader.stdout is not None
        background = int(leader.stdout.readline())
    try:
        processes.finish()
        assert processes.pids() == [background]
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            processes.finish()
            processes.finish()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        processes.finish()
        assert processes.pids() == [background]
    finally:
        os.kill(background, signal.SIGKILL)


def test_who_may_have_changed_a_file_is_looked_for_before_it_is_told_of(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    watching = Watching(tmp_path, root, files=True, rests=True)
    observers = watching.observers
    observers.before_start()
    with subprocess.Popen(["sleep", "1004"], start_new_session=True) as leader:
        observers.leader_started(leader.pid, 1)
        observers.tick()
        observers.tick()
        time.sleep(5.5)  # it rests when nothing was recorded for five seconds
        _until(watching, lambda: (observers.deadline() or 0.0) > time.monotonic() + 0.5)
        (root / "a").touch()
        for fd in observers.fds():
            observers.readable(fd)
        due, now = observers.deadline(), time.monotonic()
        leader.kill()
    assert due is not None
    assert due <= now + GATHER_SECONDS / 2
    observers.finish()
    watching.close()
