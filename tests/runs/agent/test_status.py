"""`agent status`: what it prints, how it exits, and that it is quick."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from runs.agent.status_file import StatusFile
from tests.runs.agent.booted import PYTHON, UNTIL_GO, Workspace, command, eventually, step
from tests.support.open_files import path_of
from tests.support.waiting import LONG_WAIT


def test_ready_exits_with_0(workspace: Workspace) -> None:
    workspace.boot().settle()
    ended = workspace.agent("status")
    assert ended.returncode == 0
    assert json.loads(ended.stdout) == workspace.status()


def test_failed_exits_with_1(workspace: Workspace) -> None:
    workspace.boot(startup=[step("exit 1")]).wait()
    ended = workspace.agent("status", "--wait", "5")
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["phase"] == "failed"


def test_stopped_exits_with_1(workspace: Workspace) -> None:
    boot = workspace.boot(foreground=command(UNTIL_GO))
    boot.settle()
    workspace.go()
    boot.wait()
    assert workspace.agent("status", "--wait", "5").returncode == 1


def test_still_booting_exits_with_3_when_the_time_is_over(workspace: Workspace) -> None:
    boot = workspace.boot(setup=[step("sleep 60", name="slow")])
    while not (workspace.state / "status.json").exists() or workspace.status()["step"] is None:
        assert boot.process.poll() is None
    started = time.monotonic()
    ended = workspace.agent("status", "--wait", "0.2")
    assert time.monotonic() - started >= 0.2
    assert ended.returncode == 3
    status = json.loads(ended.stdout)
    assert status["phase"] == "setup"
    assert status["step"]["name"] == "slow"


def test_before_the_first_status_it_is_starting(workspace: Workspace) -> None:
    ended = workspace.agent("status")
    assert ended.returncode == 3
    assert json.loads(ended.stdout)["phase"] == "starting"


@pytest.mark.parametrize(("age", "phase"), [(0, "stopped"), (1, "starting")])
def test_the_word_of_an_earlier_pid_1_does_not_count(
    workspace: Workspace, age: int, phase: str
) -> None:
    # Every machine has a PID 1; what tells one life of it from the next is when it started.
    started = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
    left_behind = {"phase": "stopped", "process": {"pid": 1, "startTicks": started - age}}
    workspace.state.mkdir()
    (workspace.state / "status.json").write_text(json.dumps(left_behind))
    assert json.loads(workspace.agent("status").stdout)["phase"] == phase


def test_a_wait_that_began_first_ends_with_the_boot(workspace: Workspace) -> None:
    answers: list[subprocess.CompletedProcess[str]] = []
    waiting = threading.Thread(
        target=lambda: answers.append(workspace.agent("status", "--wait", str(LONG_WAIT)))
    )
    waiting.start()
    workspace.boot(startup=[step("sleep 0.2")])
    waiting.join()
    assert answers[0].returncode == 0
    assert json.loads(answers[0].stdout)["runId"] == workspace.run_id


def ignores(pid: int, number: int) -> bool:
    """Whether a process does nothing when it gets that signal."""
    facts = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return bool(int(facts["SigIgn"], 16) >> (number - 1) & 1)


def test_a_wait_outlives_the_end_of_the_boot_it_waits_for(workspace: Workspace) -> None:
    argv = [PYTHON, "-I", str(workspace.archive), "status", "--wait", str(LONG_WAIT)]
    waiting = subprocess.Popen(
        [*argv, "--state-dir", str(workspace.state)], stdout=subprocess.PIPE, text=True
    )
    # A failing boot terminates every process of its container; a short wait gives the answer.
    eventually(lambda: ignores(waiting.pid, signal.SIGTERM))
    waiting.terminate()
    workspace.boot(startup=[step("exit 1")]).wait()
    printed, _ = waiting.communicate()
    assert json.loads(printed)["phase"] == "failed"
    assert waiting.returncode == 1


def test_the_status_file_is_readable_by_all_and_written_whole(workspace: Workspace) -> None:
    boot = workspace.boot(startup=[step("true") for _ in range(30)], secrets=["s3cret"])
    phases = set()
    while boot.process.poll() is None and "ready" not in phases:
        if (workspace.state / "status.json").exists():
            phases.add(workspace.status()["phase"])
    file = workspace.state / "status.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert stat.S_IMODE(workspace.state.stat().st_mode) == 0o755
    assert b"s3cret" not in file.read_bytes()
    assert phases <= {"dotfiles", "startup", "ready"}


def test_a_status_costs_little_more_than_starting_python(workspace: Workspace) -> None:
    workspace.boot().settle()
    argv = [PYTHON, "-I", "-X", "importtime", str(workspace.archive), "status"]
    argv += ["--state-dir", str(workspace.state)]
    imported = subprocess.run(argv, capture_output=True, text=True, check=True).stderr
    # Counted and not timed: the time of a busy machine says nothing.
    modules = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    ours = {name for name in modules if name.startswith("agent")}
    needed = {"__main__", "arguments", "status_file", "status_command", "typing_names"}
    assert ours == {"agent", *(f"agent.{name}" for name in needed)}
    assert modules.isdisjoint(
        {
            "subprocess",
            "pathlib",
            "ctypes",
            "dataclasses",
            "inspect",
            "asyncio",
            "argparse",
            "locale",
        }
    )


def test_only_how_a_boot_ended_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Path] = []

    def sync(descriptor: int) -> None:
        if (path := path_of(descriptor)).is_relative_to(tmp_path):
            waited.append(path)

    monkeypatch.setattr(os, "fsync", sync)
    status = StatusFile(str(tmp_path))
    for phase in ("credentials", "dotfiles", "startup", "ready"):
        status.write(phase)
        assert json.loads((tmp_path / "status.json").read_text())["phase"] == phase
    assert waited == []
    for count, phase in ((2, "failed"), (4, "stopped")):
        status.write(phase)  # the file, and the folder with its name
        assert len(waited) == count


def test_a_status_that_the_disk_never_had_counts_as_none(workspace: Workspace) -> None:
    workspace.state.mkdir(parents=True, exist_ok=True)
    (workspace.state / "status.json").touch()
    argv = [PYTHON, "-I", str(workspace.archive), "status", "--state-dir", str(workspace.state)]
    told = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (told.returncode, json.loads(told.stdout)["phase"]) == (3, "starting")
