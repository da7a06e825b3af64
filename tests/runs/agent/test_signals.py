"""PID 1: signals, the foreground's end, orphans, and doing nothing while nothing happens."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.runs.agent.booted import UNTIL_GO, Boot, Workspace, command, eventually, step

LISTENING = (
    'for name in HUP INT QUIT USR1 USR2 TERM; do trap "echo $name >> signals" $name; done; '
    "touch listening; while :; do sleep 0.01; done"
)


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "USR1", "USR2", "TERM"])
def test_signals_reach_the_foreground(workspace: Workspace, name: str) -> None:
    boot = workspace.boot(foreground=command(LISTENING))
    eventually((workspace.directory / "listening").exists)
    boot.process.send_signal(getattr(signal, f"SIG{name}"))
    eventually((workspace.directory / "signals").exists)
    assert workspace.read("signals") == f"{name}\n"
    assert boot.process.poll() is None


def test_signals_reach_the_whole_process_group_of_the_foreground(workspace: Workspace) -> None:
    child = "trap 'echo child >> signals; exit' USR1; touch ready; while :; do sleep 0.01; done"
    boot = workspace.boot(foreground=command(f"trap : USR1; ({child}) & wait; wait; sleep 60"))
    eventually((workspace.directory / "ready").exists)
    boot.process.send_signal(signal.SIGUSR1)
    eventually((workspace.directory / "signals").exists)
    assert workspace.read("signals") == "child\n"


@pytest.mark.parametrize(
    ("run", "code", "exit_code", "name"),
    [
        ("exit 0", 0, 0, None),
        ("exit 42", 42, 42, None),
        ("kill -ABRT $$", 134, None, "SIGABRT"),
    ],
)
def test_the_exit_of_the_foreground_is_the_exit_of_the_container(
    workspace: Workspace, run: str, code: int, exit_code: int | None, name: str | None
) -> None:
    boot = workspace.boot(foreground=command(f"{UNTIL_GO}; {run}"))
    boot.settle()
    workspace.go()
    assert boot.wait() == code
    status = workspace.status()
    assert status["phase"] == "stopped"
    assert status["step"]["kind"] == "foreground"
    assert status["step"]["exitCode"] == exit_code
    assert status["step"]["signal"] == name


def test_a_foreground_that_obeys_term_decides_the_exit_code(workspace: Workspace) -> None:
    obeys = "trap 'exit 5' TERM; touch ready; while :; do sleep 0.01; done"
    boot = workspace.boot(foreground=command(obeys))
    boot.settle()
    eventually((workspace.directory / "ready").exists)
    assert boot.stop() == 5
    assert workspace.status()["step"]["exitCode"] == 5


def test_a_foreground_that_ignores_term_is_killed_after_the_grace(workspace: Workspace) -> None:
    boot = workspace.boot(
        foreground=command("trap '' TERM; touch ready; while :; do sleep 0.01; done"),
        limits=workspace.limits(graceSeconds=0.3),
    )
    boot.settle()
    eventually((workspace.directory / "ready").exists)
    started = time.monotonic()
    assert boot.stop() == 137
    assert time.monotonic() - started >= 0.3
    assert workspace.status()["step"]["signal"] == "SIGKILL"
    assert workspace.processes() == []


def test_the_end_of_the_foreground_is_the_end_of_everything(workspace: Workspace) -> None:
    boot = workspace.boot(
        startup=[step("setsid sleep 61 & (trap '' TERM HUP; exec sleep 62) &")],
        foreground=command(UNTIL_GO),
        limits=workspace.limits(graceSeconds=0.2),
    )
    boot.settle()
    workspace.go()
    assert boot.wait() == 0
    assert workspace.processes() == []


def test_a_workspace_held_open_for_a_harness_stops_at_once(workspace: Workspace) -> None:
    # A grace beyond the test's timeout: whoever waits for it fails.
    boot = workspace.boot(startup=[step("sleep 900 &")], limits=workspace.limits(graceSeconds=900))
    boot.settle()
    assert boot.stop() == 128 + signal.SIGTERM
    assert workspace.status()["phase"] == "stopped"
    assert workspace.status()["message"] == "stopped by SIGTERM"
    assert workspace.processes() == []


def test_an_interactive_shell_does_not_delay_the_stop(workspace: Workspace) -> None:
    # Interactive shells ignore TERM, and would use up the grace if nothing else were sent.
    boot = workspace.boot(
        startup=[step("trap '' TERM; sleep 900 &")], limits=workspace.limits(graceSeconds=900)
    )
    boot.settle()
    boot.stop()
    assert workspace.processes() == []


def test_a_stop_during_a_step_ends_the_boot(workspace: Workspace) -> None:
    boot = workspace.boot(setup=[step("touch started; sleep 60")])
    eventually((workspace.directory / "started").exists)
    assert boot.stop() == 128 + signal.SIGTERM
    assert workspace.status()["phase"] == "stopped"
    assert workspace.processes() == []
    assert not (workspace.state / "setup-done").exists()


@pytest.mark.parametrize("name", ["HUP", "USR1", "USR2"])
def test_signals_that_do_not_mean_stop_do_not_disturb_a_boot(
    workspace: Workspace, name: str
) -> None:
    boot = workspace.boot(startup=[step(f"touch started; {UNTIL_GO}")])
    eventually((workspace.directory / "started").exists)
    boot.process.send_signal(getattr(signal, f"SIG{name}"))
    workspace.go()
    assert boot.settle()["phase"] == "ready"


def test_user_processes_start_with_the_default_signals(workspace: Workspace) -> None:
    workspace.boot(startup=[step("cat /proc/self/status > signals")]).settle()
    facts = dict(line.split(":", 1) for line in workspace.read("signals").splitlines())
    # Signals 32 and 33 belong to the C library, which lets nobody change how they are inherited.
    ours = ~(1 << 31 | 1 << 32)
    for name in ("SigBlk", "SigIgn", "SigCgt"):
        assert int(facts[name], 16) & ours == 0, name


def test_user_processes_inherit_no_descriptors_of_pid_1(workspace: Workspace) -> None:
    workspace.boot(startup=[step("sleep 0 & ls /proc/self/fd > descriptors")]).settle()
    # The fourth is the folder that `ls` itself reads.
    assert workspace.read("descriptors").split() == ["0", "1", "2", "3"]


def test_every_orphan_is_reaped(workspace: Workspace) -> None:
    orphans = "for i in $(seq 100); do (setsid sh -c 'exit 3' &); done"
    boot = workspace.boot(startup=[step(orphans)], foreground=command(f"{orphans}; exec sleep 60"))
    assert boot.settle()["phase"] == "ready"
    eventually(lambda: len(boot.children()) == 1)
    assert [state for _, state in boot.children()] != ["Z"]


def test_orphans_do_not_hide_the_exit_status_of_a_step(workspace: Workspace) -> None:
    racing = "(sh -c 'exit 1' &); (sh -c 'exit 2' &); exit 9"
    for _ in range(5):
        boot = workspace.boot(startup=[step(racing)])
        assert boot.settle()["step"]["exitCode"] == 9
        boot.wait()


def test_pid_1_sleeps_while_nothing_happens(workspace: Workspace) -> None:
    # A step, so that children have ended before; their signals must be over and done with.
    boot = workspace.boot(startup=[step("(true &)")], foreground=command("exec sleep 60"))
    boot.settle()
    eventually(lambda: stat_of(boot)[0] == "S")

    def wakeups() -> int:
        status = Path(f"/proc/{boot.pid}/status").read_text()
        return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])

    def slept() -> bool:
        before = wakeups(), processor_ticks(boot)
        time.sleep(0.5)
        return (wakeups(), processor_ticks(boot)) == before

    eventually(slept)  # what is left of the boot may come late


def stat_of(boot: Boot) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    return Path(f"/proc/{boot.pid}/stat").read_text().rpartition(")")[2].split()


def processor_ticks(boot: Boot) -> int:
    """User and system time."""
    return sum(int(field) for field in stat_of(boot)[11:13])
