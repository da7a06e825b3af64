"""Steps: how they end, what they leave behind, and what is kept of their output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.runs.agent.booted import UNTIL_GO, Boot, Workspace, command, eventually, step


def test_a_failing_step_is_named_with_its_exit_code_and_output(workspace: Workspace) -> None:
    boot = workspace.boot(
        setup=[step("true"), step("echo out; echo err >&2; exit 7", name="install things")],
        startup=[step("touch startup")],
    )
    status = boot.settle()
    assert boot.wait() == 70
    assert status["phase"] == "failed"
    assert status["runId"] == workspace.run_id
    assert status["step"] == {
        "name": "install things",
        "kind": "setup",
        "index": 1,
        "exitCode": 7,
        "signal": None,
        "timedOut": False,
    }
    assert status["message"] == 'setup step "install things" exited with code 7'
    assert status["tail"] == "out\nerr\n"
    assert not (workspace.directory / "startup").exists()


def test_a_step_killed_by_a_signal_is_reported_with_its_name(workspace: Workspace) -> None:
    status = workspace.boot(startup=[step("kill -SEGV $$")]).settle()
    assert status["step"]["exitCode"] is None
    assert status["step"]["signal"] == "SIGSEGV"
    assert status["message"].endswith("was killed by SIGSEGV")


def outlasted(workspace: Workspace, script: str, **limits: float) -> tuple[Boot, dict[str, Any]]:
    """Have a step meet its time limit after it has said that it waits."""
    for seconds in (0.2, 2, 20):
        boot = workspace.boot(
            startup=[step(script)], limits=workspace.limits(stepSeconds=seconds, **limits)
        )
        status = boot.settle()
        if status["tail"].startswith("waiting\n"):
            break
    assert status["tail"].startswith("waiting\n")
    assert status["step"]["timedOut"] is True
    assert f"ran longer than {seconds} seconds" in status["message"]
    return boot, status


def test_a_step_that_takes_too_long_is_terminated(workspace: Workspace) -> None:
    boot, status = outlasted(workspace, "echo waiting; sleep 600")
    assert status["step"]["signal"] == "SIGTERM"
    assert boot.wait() == 70
    assert workspace.processes() == []


def test_a_step_that_ignores_term_is_killed_with_its_whole_group(workspace: Workspace) -> None:
    ignores = "trap '' TERM; (sleep 601; true) & echo waiting; sleep 602; true"
    boot, status = outlasted(workspace, ignores, graceSeconds=0.2)
    assert status["step"]["signal"] == "SIGKILL"
    assert boot.wait() == 70
    assert workspace.processes() == []


def test_a_step_that_exits_politely_when_terminated_has_still_timed_out(
    workspace: Workspace,
) -> None:
    polite = "trap 'exit 0' TERM; echo waiting; while :; do sleep 0.01; done"
    _, status = outlasted(workspace, polite)
    assert status["phase"] == "failed"
    assert status["step"]["exitCode"] == 0


def test_a_stopped_step_is_woken_to_be_terminated(workspace: Workspace) -> None:
    boot = workspace.boot(startup=[step("kill -STOP $$")], limits=workspace.limits(stepSeconds=0.2))
    assert boot.settle()["step"]["signal"] == "SIGTERM"


def test_a_child_that_keeps_the_pipe_open_does_not_hold_the_boot(workspace: Workspace) -> None:
    boot = workspace.boot(startup=[step("sleep 60 & echo started")])
    assert boot.settle()["phase"] == "ready"
    assert boot.output == b"started\n"


def test_a_child_that_never_stops_writing_does_not_hold_the_boot(workspace: Workspace) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader:
        boot = workspace.boot(stdout=write, startup=[step("yes & sleep 0.1")])
        os.close(write)
        drain = subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL)
        assert boot.settle()["phase"] == "ready"
        boot.stop()
        drain.wait()


def test_a_daemon_survives_its_step_and_its_output_is_still_read(workspace: Workspace) -> None:
    daemon = f"({UNTIL_GO}; echo from the daemon; touch written; sleep 60) &"
    boot = workspace.boot(startup=[step(daemon)])
    assert boot.settle()["phase"] == "ready"
    workspace.go()
    eventually((workspace.directory / "written").exists)
    eventually(lambda: boot.output == b"from the daemon\n")
    assert workspace.processes() != []


def test_output_reaches_the_log_raw_and_each_stream_in_order(workspace: Workspace) -> None:
    write = r"""
import os
for number in range(2000):
    os.write(1 + number % 2, b"%d\0\xff\n" % number)
"""
    (workspace.home / "write.py").write_text(write)
    boot = workspace.boot(startup=[step("python3 ~/write.py")], env={"PATH": "/usr/bin:/bin"})
    assert boot.settle()["phase"] == "ready"
    lines = boot.output.splitlines(keepends=True)
    for stream in (0, 1):
        written = [b"%d\0\xff\n" % number for number in range(stream, 2000, 2)]
        assert [line for line in lines if int(line.split(b"\0")[0]) % 2 == stream] == written


def test_output_is_live_and_not_held_until_the_step_ends(workspace: Workspace) -> None:
    boot = workspace.boot(startup=[step(f"printf partial; {UNTIL_GO}")])
    eventually(lambda: boot.output == b"partial")
    workspace.go()
    assert boot.settle()["phase"] == "ready"


def test_a_tail_of_bytes_that_are_no_text_is_still_text(workspace: Workspace) -> None:
    boot = workspace.boot(
        startup=[step(r"printf 'a\000b\377\376c'; exit 1")], limits=workspace.limits(tailBytes=8)
    )
    tail = boot.settle()["tail"]
    assert tail.endswith("\ufffdc")
    assert "\0" not in tail
    assert len(tail.encode()) <= 8


def test_200_megabytes_of_output_need_no_memory(workspace: Workspace) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader:
        boot = workspace.boot(
            stdout=write,
            startup=[step("head -c 200000000 /dev/zero | tr '\\0' x; printf end")],
            foreground=command("sleep 60"),
        )
        os.close(write)
        count = subprocess.Popen(["wc", "-c"], stdin=reader, stdout=subprocess.PIPE)
        assert boot.settle()["phase"] == "ready"
        peak = Path(f"/proc/{boot.pid}/status").read_text().split("VmHWM:")[1].split()[0]
        boot.stop()
        written, _ = count.communicate()
    assert int(written) == 200_000_003
    assert int(peak) < 48 * 1024


def test_a_log_that_nobody_reads_blocks_neither_time_limits_nor_signals(
    workspace: Workspace,
) -> None:
    read, write = os.pipe()
    boot = workspace.boot(
        stdout=write,
        startup=[step("head -c 10000000 /dev/zero")],
        limits=workspace.limits(stepSeconds=0.5),
    )
    os.close(write)
    try:
        status = boot.settle()
        assert status["step"]["timedOut"] is True
        assert boot.wait() == 70
    finally:
        os.close(read)


def test_a_log_that_is_gone_does_not_stop_the_workspace(workspace: Workspace) -> None:
    read, write = os.pipe()
    os.close(read)
    boot = workspace.boot(
        stdout=write, startup=[step("head -c 1000000 /dev/zero; echo kept; exit 1")]
    )
    os.close(write)
    assert boot.settle()["tail"].endswith("kept\n")


def test_secrets_are_masked_in_the_tail_wherever_a_chunk_ends(workspace: Workspace) -> None:
    run = "printf 'token=s3cr'; sleep 0.05; printf 'et-val'; sleep 0.05; printf 'ue.\\n'; exit 1"
    status = workspace.boot(startup=[step(run)], secrets=["s3cret-value"]).settle()
    assert status["tail"] == "token=************.\n"


def test_a_shell_that_is_missing_is_a_clear_failure(workspace: Workspace) -> None:
    status = workspace.boot(startup=[step("true", name="a", cwd="/no/such/place")]).settle()
    assert status["phase"] == "failed"
    assert status["message"] == (
        'startup step "a" could not start: '
        "cannot enter the working directory /no/such/place: No such file or directory"
    )
    assert status["step"]["exitCode"] is None
    assert status["step"]["signal"] is None


def test_a_failed_boot_ends_what_earlier_steps_left_running(workspace: Workspace) -> None:
    boot = workspace.boot(startup=[step("setsid sleep 60 & echo"), step("exit 1")])
    assert boot.wait() == 70
    assert workspace.processes() == []
