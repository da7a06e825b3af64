"""A program we run ends in time, takes its children with it, and never repeats its arguments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from controlplane.subprocesses import ProcessStartError, Tail, run_process
from tests.support.waiting import LONG_WAIT

ENV = {"PATH": os.environ["PATH"]}
ROOT = Path(__file__).resolve().parents[2]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int) -> bool:
    deadline = time.monotonic() + LONG_WAIT
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_output_of_both_streams_arrives_as_it_appears_and_the_exit_code_is_told(
    tmp_path: Path,
) -> None:
    chunks: list[bytes] = []

    def seen(chunk: bytes) -> None:
        chunks.append(chunk)
        (tmp_path / "seen").touch()

    until_seen = f"until test -e {tmp_path}/seen; do sleep 0.01; done"
    result = run_process(
        ["sh", "-c", f"echo one; {until_seen}; echo two >&2; exit 7"],
        env=ENV,
        timeout=LONG_WAIT,
        output=seen,
        stdout_limit=100,
    )
    assert chunks == [b"one\n", b"two\n"]
    assert (result.exit_code, result.signal, result.ok) == (7, None, False)
    assert result.ending == "exit code 7"
    assert result.stdout == b"one\n"
    assert result.tail == b"one\ntwo\n"
    assert result.output_bytes == 8


def test_a_program_ended_by_a_signal_is_told_with_its_name() -> None:
    result = run_process(["sh", "-c", "kill -KILL $$"], env=ENV, timeout=LONG_WAIT)
    assert (result.exit_code, result.signal) == (None, "SIGKILL")
    assert result.ending == "signal SIGKILL"
    assert not result.cancelled
    assert not result.timed_out


def test_the_environment_is_exactly_what_was_given_and_stdin_is_empty() -> None:
    result = run_process(
        [sys.executable, "-c", "import os,sys; print(sorted(os.environ), repr(sys.stdin.read()))"],
        env={**ENV, "ONLY": "this", "LC_CTYPE": "C.UTF-8"},
        timeout=LONG_WAIT,
        stdout_limit=1000,
    )
    assert result.stdout.decode() == "['LC_CTYPE', 'ONLY', 'PATH'] ''\n"


def test_a_program_has_no_terminal_to_ask_on() -> None:
    result = run_process(["sh", "-c", ": < /dev/tty"], env=ENV, timeout=LONG_WAIT)
    assert result.exit_code != 0


def test_only_the_end_of_much_output_is_kept_and_all_of_it_is_counted() -> None:
    result = run_process(
        ["sh", "-c", "yes 0123456 | head -c 8000000; echo end"],
        env=ENV,
        timeout=LONG_WAIT,
        tail_limit=1000,
        stdout_limit=10,
    )
    assert result.ok
    assert result.output_bytes == 8_000_004
    assert len(result.tail) == 1000
    assert result.tail.endswith(b"end\n")
    assert result.stdout == b"0123456\n01"


def test_the_time_limit_ends_the_program_and_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    started = time.monotonic()
    for seconds in (0.5, 5, 50):  # until the limit strikes after the child is there
        result = run_process(
            ["sh", "-c", f"sleep 600 & echo $! > {child}; wait"],
            env=ENV,
            timeout=seconds,
            grace=LONG_WAIT,
        )
        if child.exists() and child.read_text():
            break
    assert time.monotonic() - started < LONG_WAIT
    assert result.timed_out
    assert not result.ok
    assert result.signal == "SIGTERM"
    assert gone(int(child.read_text()))


def test_a_program_that_ignores_the_first_signal_is_killed_after_the_grace_time() -> None:
    cancelled = threading.Event()
    deaf: list[float] = []

    def listens_no_more(chunk: bytes) -> None:
        deaf.append(time.monotonic())
        cancelled.set()

    result = run_process(
        ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"],
        env=ENV,
        timeout=LONG_WAIT,
        grace=0.5,
        cancelled=cancelled,
        output=listens_no_more,
    )
    assert result.cancelled
    assert result.signal == "SIGKILL"
    assert time.monotonic() - deaf[0] >= 0.5


def test_a_program_that_takes_the_first_signal_for_another_is_ended_by_the_one_it_is_given() -> (
    None
):
    cancelled = threading.Event()
    result = run_process(
        ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"],
        env=ENV,
        timeout=600,
        grace=600,  # a run that waits for it is cut off
        stop_signal=signal.SIGKILL,
        cancelled=cancelled,
        output=lambda chunk: cancelled.set(),
    )
    assert result.cancelled
    assert result.signal == "SIGKILL"


def test_cancellation_ends_the_program_at_once() -> None:
    cancelled = threading.Event()
    timer = threading.Timer(0.3, cancelled.set)
    timer.start()
    started = time.monotonic()
    result = run_process(["sleep", "600"], env=ENV, timeout=600, cancelled=cancelled)
    timer.join()
    assert result.cancelled
    assert not result.timed_out
    assert time.monotonic() - started < LONG_WAIT


def test_a_program_that_ends_well_although_it_was_cancelled_is_not_ok() -> None:
    cancelled = threading.Event()
    cancelled.set()
    result = run_process(
        ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done"],
        env=ENV,
        timeout=LONG_WAIT,
        cancelled=cancelled,
    )
    assert result.cancelled
    assert not result.ok


def test_the_watcher_can_stop_the_program() -> None:
    looks: list[int] = []

    def enough() -> bool:
        looks.append(1)
        return len(looks) > 3

    result = run_process(["sleep", "600"], env=ENV, timeout=600, watch=enough)
    assert result.stopped
    assert len(looks) == 4


def test_a_child_that_holds_the_pipes_does_not_hold_us(tmp_path: Path) -> None:
    child = tmp_path / "child"
    started = time.monotonic()
    result = run_process(
        ["sh", "-c", f"sleep 600 & echo $! > {child}; echo done"], env=ENV, timeout=LONG_WAIT
    )
    assert result.ok
    assert result.tail == b"done\n"
    assert time.monotonic() - started < LONG_WAIT
    assert gone(int(child.read_text()))


def test_a_program_that_closes_its_streams_is_waited_for() -> None:
    result = run_process(
        ["sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 3"], env=ENV, timeout=LONG_WAIT
    )
    assert result.exit_code == 3
    assert result.seconds >= 0.3


def test_a_failing_output_callback_ends_the_program(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def refuse(chunk: bytes) -> None:
        raise ConnectionError("the record is gone")

    with pytest.raises(ConnectionError, match="the record is gone"):
        run_process(
            ["sh", "-c", f"echo $$ > {pid}; echo hi; sleep 600"],
            env=ENV,
            timeout=LONG_WAIT,
            output=refuse,
        )
    assert gone(int(pid.read_text()))


COUNTING = """
import os, sys, threading
from controlplane.subprocesses import run_process

def held():
    return threading.active_count(), sorted(os.listdir("/proc/self/fd"))

def run():
    result = run_process(["sh", "-c", "echo x; echo y >&2"], env=dict(os.environ), timeout=600)
    assert result.ok

run()
before = held()
for _ in range(20):
    run()
print(before == held(), before, held())
"""
"""In a process of its own: in this one, threads and collections of others open and close files."""


def test_no_thread_and_no_descriptor_is_left_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTING], env=ENV, cwd=ROOT, capture_output=True, check=True
    )
    assert done.stdout.startswith(b"True "), done.stdout


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program", "/etc/passwd"])
def test_a_program_that_cannot_start_is_named_without_its_arguments(program: str) -> None:
    with pytest.raises(ProcessStartError) as caught:
        run_process([program, "--token=hush"], env={**ENV, "TOKEN": "hush"}, timeout=LONG_WAIT)
    assert Path(program).name in str(caught.value)
    assert "hush" not in str(caught.value)


def test_an_argument_that_no_program_can_get_is_refused_without_repeating_it() -> None:
    with pytest.raises(ProcessStartError) as caught:
        run_process(["echo", "hush\0"], env=ENV, timeout=LONG_WAIT)
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_program_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = (
        "import os\nfrom controlplane.subprocesses import run_process\n"
        f"run_process(['sh', '-c', 'echo $$ > {pid}; exec sleep 600'],"
        " env={'PATH': os.environ['PATH']}, timeout=600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + LONG_WAIT
    while not (pid.exists() and pid.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone(int(pid.read_text()))


def test_a_tail_without_room_only_counts() -> None:
    tail = Tail(0)
    tail.feed(b"abc")
    assert (tail.bytes(), tail.total) == (b"", 3)
