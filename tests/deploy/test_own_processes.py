"""Our own processes under a real supervisord, and the virtual environment they run from."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.services.errors import SetupError, StartError
from deploy.services.process import ProcessRecord, wait_until
from deploy.up import venv
from deploy.up.layout import Layout
from deploy.up.logged import run_logged
from deploy.up.own_processes import OwnProcesses, Process
from deploy.up.progress import Progress
from tests.deploy.conftest import make_venv
from tests.support.waiting import LONG_WAIT

WORK = """
import os, signal, sys, time
from pathlib import Path
here = Path.cwd()
def finish(*_):
    time.sleep(0.5)
    (here / "finished").write_text(os.environ["SVC_WORD"])
    sys.exit(0)
signal.signal(signal.SIGTERM, finish)
(here / "pid").write_text(str(os.getpid()))
while True:
    time.sleep(0.1)
"""

END_AND_SEE = """
import os, signal, sys
from supervisor.options import ServerOptions
from deploy.supervisor import PromptSupervisor
options = ServerOptions()
options.realize(["--nodaemon", f"--configuration={sys.argv[1]}"])
options.make_logger()
supervisor = PromptSupervisor(options)
for config in options.process_group_configs:
    supervisor.add_process_group(config)
(process,) = supervisor.process_groups["worker"].processes.values()
process.spawn()
first = process.pid
os.kill(first, signal.SIGKILL)
os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
supervisor.reap()
print(first, process.pid)
if process.pid:
    os.kill(process.pid, signal.SIGKILL)
"""
"""supervisord's turn after a process has ended, without its loop, which makes up for it later."""


@pytest.fixture
def processes(layout: Layout) -> Iterator[OwnProcesses]:
    """One process that needs half a second to finish, under the suite's own supervisord."""
    (layout.checkout / "work.py").write_text(WORK)
    (layout.checkout / "app").mkdir()
    (layout.checkout / "app" / "code.py").write_text("")
    make_venv(layout)
    own = OwnProcesses(layout, (Process("worker", "{bin}/python work.py", round(LONG_WAIT)),))
    yield own
    own.stop()


def _environ(word: str = "first") -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "SVC_WORD": word}


def _worker(layout: Layout) -> ProcessRecord | None:
    path = layout.checkout / "pid"
    return ProcessRecord.of(int(path.read_text() or "0")) if path.exists() else None


@pytest.mark.slow
def test_work_under_way_is_finished_before_a_stop(layout: Layout, processes: OwnProcesses) -> None:
    processes.start(_environ())
    assert wait_until(lambda: _worker(layout) is not None, LONG_WAIT)
    assert wait_until(lambda: (processes.states() or {}).get("worker") == "RUNNING", LONG_WAIT)
    assert processes.is_current(_environ())
    assert processes.stop() is True
    assert (layout.checkout / "finished").read_text() == "first"
    assert not processes.running
    assert processes.states() is None
    assert processes.stop() is False


@pytest.mark.slow
def test_a_process_that_dies_is_started_again(layout: Layout, processes: OwnProcesses) -> None:
    processes.start(_environ())
    assert wait_until(lambda: _worker(layout) is not None, LONG_WAIT)
    first = _worker(layout)
    assert first is not None
    first.signal(signal.SIGKILL)
    assert wait_until(lambda: _worker(layout) not in {None, first}, LONG_WAIT)


def test_it_is_started_again_as_soon_as_it_was_seen_to_have_ended(
    layout: Layout, processes: OwnProcesses
) -> None:
    # Ready with its first moment: supervisord waits with what ended earlier than it should.
    configuration = layout.data / "prompt.conf"
    configuration.write_text(processes.configuration().replace("startsecs=2", "startsecs=0"))
    told = subprocess.run(
        [sys.executable, "-c", END_AND_SEE, configuration],
        capture_output=True,
        text=True,
        timeout=LONG_WAIT,
        check=True,
        env=_environ(),
        cwd=Path(__file__).parents[2],
    ).stdout.splitlines()[-1]
    first, second = map(int, told.split())
    assert second not in (0, first)


@pytest.mark.slow
def test_a_supervisor_that_was_killed_leaves_nothing_in_the_way_of_the_next(
    layout: Layout, processes: OwnProcesses
) -> None:
    processes.start(_environ())
    assert wait_until(lambda: _worker(layout) is not None, LONG_WAIT)
    orphan = _worker(layout)
    assert orphan is not None
    supervisor = ProcessRecord.load(layout.data / "supervisord.json")
    assert supervisor is not None
    supervisor.signal(signal.SIGKILL)
    assert supervisor.wait_gone(LONG_WAIT)
    assert not processes.is_current(_environ())
    assert orphan.alive

    processes.start(_environ())
    assert not orphan.alive
    assert wait_until(lambda: _worker(layout) not in {None, orphan}, LONG_WAIT)


@pytest.mark.slow
def test_changed_settings_or_code_make_running_processes_stale(
    layout: Layout, processes: OwnProcesses
) -> None:
    processes.start(_environ())
    assert processes.is_current({**_environ(), "COLUMNS": "80"})
    assert not processes.is_current(_environ("second"))
    (layout.checkout / "app" / "code.py").write_text("changed = True\n")
    assert not processes.is_current(_environ())


def test_a_supervisor_that_cannot_start_says_why(layout: Layout) -> None:
    (layout.venv / "bin").mkdir(parents=True)
    program = layout.venv / "bin" / "python"
    program.write_text("#!/bin/sh\necho the reason\nexit 2\n")
    program.chmod(0o755)
    with pytest.raises(StartError, match="the reason"):
        OwnProcesses(layout).start(_environ())


def test_the_configuration_expands_nothing_and_holds_no_secret(tmp_path: Path) -> None:
    checkout = tmp_path / "100% mine (copy)"
    layout = Layout(checkout, checkout / ".data", checkout / ".data" / "services")
    text = OwnProcesses(layout).configuration()
    assert "100%% mine" in text
    assert "100% mine" not in text.replace("%%", "")
    assert "environment" not in text


def test_the_environment_is_filled_once_for_one_lock(layout: Layout) -> None:
    layout.venv.mkdir()
    for name in (venv.PRODUCTION, venv.DEVELOPMENT):
        assert not venv.is_current(layout, name)
    (layout.venv / f".{venv.PRODUCTION}.sha256").write_text(
        venv.fingerprint(layout, venv.PRODUCTION)
    )
    assert venv.is_current(layout, venv.PRODUCTION)
    assert not venv.is_current(layout, venv.DEVELOPMENT)
    (layout.checkout / "deploy" / venv.PRODUCTION).write_text("django==5.3\n")
    assert not venv.is_current(layout, venv.PRODUCTION)


def test_a_moved_checkout_gets_a_new_environment(layout: Layout, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(layout.checkout / "deploy", moved / "deploy")
    elsewhere = Layout(moved, moved / ".data", moved / ".data" / "services")
    assert venv.fingerprint(layout, venv.PRODUCTION) != venv.fingerprint(elsewhere, venv.PRODUCTION)


@pytest.mark.slow
def test_an_environment_without_requirements_is_made_and_then_left_alone(layout: Layout) -> None:
    (layout.checkout / "deploy" / venv.PRODUCTION).write_text("# nothing is needed\n")
    venv.ensure_venv(layout, Progress())
    python = layout.venv / "bin" / "python"
    made = python.lstat().st_mtime_ns
    venv.ensure_venv(layout, Progress())
    assert python.lstat().st_mtime_ns == made
    run_logged([python, "-c", "import pip"], log=layout.setup_log, seconds=LONG_WAIT)


def test_a_program_that_fails_is_quoted_with_its_last_words(layout: Layout) -> None:
    with pytest.raises(SetupError) as error:
        run_logged(["sh", "-c", "echo last words; exit 3"], log=layout.setup_log, seconds=LONG_WAIT)
    assert "exit code 3" in str(error.value)
    assert "last words" in str(error.value)
    with pytest.raises(SetupError, match="not done after 0 s"):
        run_logged(["sleep", "30"], log=layout.setup_log, seconds=0.2)
    with pytest.raises(SetupError, match="No such file"):
        run_logged(["no-such-program"], log=layout.setup_log, seconds=LONG_WAIT)
