"""The record of a boot: all of it, however the boot ends, and over the container's restarts."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from runs.agent.record.frames import KIND_NAMES, STREAM_NAMES, Event, decode, frames
from runs.agent.record.spool import SpoolLimits, SpoolWriter
from tests.runs.agent.booted import (
    PYTHON,
    RECORD,
    UNTIL_GO,
    Boot,
    Workspace,
    command,
    eventually,
    step,
)

ONCE = RECORD | {"restart": False}


class Recorded:
    """The events that lie in a run's spool."""

    def __init__(self, folder: Path) -> None:
        contents = b"".join(part.read_bytes() for part in sorted(folder.glob("*.seg")))
        self.events: list[Event] = [decode(content) for content in frames(contents)]
        assert [event.sequence for event in self.events] == list(range(1, len(self.events) + 1))

    @property
    def kinds(self) -> list[str]:
        return [KIND_NAMES[event.kind] for event in self.events]

    def metas(self, kind: str) -> list[dict[str, Any]]:
        """The metas of all events of a kind, with the process they belong to."""
        return [
            {"process": event.process, **json.loads(event.meta)}
            for event in self.events
            if KIND_NAMES[event.kind] == kind
        ]

    def states(self) -> list[str]:
        return [meta["state"] for meta in self.metas("runtimeStateChanged")]

    def output(self, process: int, stream: str) -> bytes:
        """What was recorded of a stream; nothing may be missing in it."""
        found = b""
        for event in self.events:
            if KIND_NAMES[event.kind] != "ioChunk" or event.process != process:
                continue
            if STREAM_NAMES[event.stream] == stream:
                assert event.offset == len(found)
                found += event.body
        return found


def recorded(workspace: Workspace, run_id: str = "") -> Recorded:
    return Recorded(workspace.state / "runs" / (run_id or workspace.run_id))


def ready(boot: Boot) -> Boot:
    assert boot.settle()["phase"] == "ready"
    return boot


def test_the_first_event_says_how_the_boot_is_recorded_and_the_last_one_has_the_totals(
    workspace: Workspace,
) -> None:
    boot = ready(workspace.boot(startup=[step("echo hello")], record=ONCE))
    boot_id = workspace.status()["bootId"]
    boot.stop()
    record = recorded(workspace)
    started = record.metas("recordStarted")[0]
    assert record.kinds[0] == "recordStarted"
    assert started["mode"] == "boot"
    assert started["runId"] == workspace.run_id
    assert started["bootId"] == boot_id
    assert started["policy"] == "block"
    assert started["coverage"]["processes"]["state"] == "limited"
    assert started["coverage"]["files"]["reason"] == "not observed during boot"
    assert record.kinds[-1] == "recordSealed"
    sealed = record.metas("recordSealed")[0]
    assert sealed["reason"] == "stopped"
    assert sealed["exit"] is None
    assert sealed["events"] == len(record.events)
    assert sealed["processes"] == 1
    assert sealed["streams"] == [
        {"process": 1, "stream": "stdout", "bytes": 6, "dropped": 0},
        {"process": 1, "stream": "stderr", "bytes": 0, "dropped": 0},
    ]


def test_each_phase_is_an_event(workspace: Workspace) -> None:
    boot = ready(
        workspace.boot(setup=[step("true")], startup=[step("true")], foreground=command(UNTIL_GO))
    )
    workspace.go()
    boot.wait()
    assert recorded(workspace).states() == [
        *("starting", "dotfiles", "setup", "startup", "startup", "ready", "stopping", "stopped"),
    ]


def test_both_streams_of_a_step_are_recorded_byte_for_byte(workspace: Workspace) -> None:
    write = (
        "import os\nfor n in range(3000):\n os.write(1 + n % 2, b'%d\\0\\xff\\n' % n * (n % 50))\n"
    )
    workspace.home.joinpath("write.py").write_text(write)
    run = "python3 ~/write.py"
    ready(workspace.boot(startup=[step(run)], env={"PATH": "/usr/bin:/bin"}, record=ONCE)).stop()
    record = recorded(workspace)
    for parity, stream in enumerate(("stdout", "stderr")):
        whole = b"".join(b"%d\0\xff\n" % n * (n % 50) for n in range(parity, 3000, 2))
        assert record.output(1, stream) == whole
    assert {meta["reason"] for meta in record.metas("processStreamClosed")} == {"eof"}


def test_a_process_is_recorded_with_its_command_and_its_exit(workspace: Workspace) -> None:
    boot = ready(
        workspace.boot(
            startup=[step("true", name="prepare")],
            foreground=command(f"{UNTIL_GO}; exit 3"),
            record=ONCE,
        )
    )
    workspace.go()
    assert boot.wait() == 3
    record = recorded(workspace)
    first, second = record.metas("processStarted")
    assert first["argv"] == ["/bin/sh", "-c", "true"]
    assert first["cwd"] == str(workspace.directory)
    assert (first["name"], second["name"]) == ("prepare", "foreground")
    assert first["leader"]
    assert first["streams"] == ["stdout", "stderr"]
    exits = [(meta["process"], meta["code"]) for meta in record.metas("processExited")]
    assert exits == [(1, 0), (2, 3)]
    sealed = record.metas("recordSealed")[0]
    assert (sealed["reason"], sealed["exit"]) == (
        "ended",
        {"code": 3, "signal": None, "reason": "exited"},
    )


def test_a_foreground_that_takes_long_to_die_is_killed_once_in_its_record(
    workspace: Workspace,
) -> None:
    large = (
        "import signal, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "held = b'x' * (200 << 20); pathlib.Path('ready').touch(); signal.pause()"
    )
    boot = workspace.boot(
        foreground=command(f'exec {PYTHON} -c "{large}"'),
        limits=workspace.limits(graceSeconds=0.1),
        record=ONCE,
    )
    ready(boot)
    eventually((workspace.directory / "ready").exists)
    assert boot.stop() == 137
    sent = [meta["signal"] for meta in recorded(workspace).metas("signalSent")]
    assert sent.count("SIGKILL") == 1


@pytest.mark.parametrize(("ordered", "code"), [(False, 3), (True, 0)])
def test_an_end_that_the_status_has_no_room_for_is_the_end_that_it_was(
    workspace: Workspace, ordered: bool, code: int
) -> None:
    waits = f"trap 'exit 0' TERM; touch listening; {UNTIL_GO}; exit 3"
    boot = workspace.boot(foreground=command(waits), record=ONCE)
    boot.settle()
    eventually((workspace.directory / "listening").exists)
    (workspace.state / "status.json.new").mkdir()
    if ordered:
        boot.process.send_signal(signal.SIGTERM)
    else:
        workspace.go()
    assert boot.wait() == code
    (seal,) = recorded(workspace).metas("recordSealed")
    assert seal["reason"] == ("stopped" if ordered else "ended")
    assert seal["exit"] == {"code": code, "signal": None, "reason": "exited"}


def test_a_stop_that_the_status_has_no_room_for_is_no_failure(workspace: Workspace) -> None:
    boot = workspace.boot()
    boot.settle()
    (workspace.state / "status.json.new").mkdir()
    assert boot.stop() == 128 + signal.SIGTERM


def test_a_failed_step_seals_the_record_with_its_own_exit(workspace: Workspace) -> None:
    run = "echo last words >&2; exit 7"
    assert workspace.boot(setup=[step(run)], record=ONCE).wait() == 70
    record = recorded(workspace)
    assert record.output(1, "stderr") == b"last words\n"
    assert record.states()[-2:] == ["failed", "stopped"]
    sealed = record.metas("recordSealed")[0]
    assert sealed["exit"] == {"code": 7, "signal": None, "reason": "exited"}


def test_a_step_that_takes_too_long_ends_as_a_timeout(workspace: Workspace) -> None:
    limits = workspace.limits(stepSeconds=0.2)
    boot = workspace.boot(startup=[step("exec sleep 60")], limits=limits, record=ONCE)
    assert boot.wait() == 70
    record = recorded(workspace)
    exited = {"code": None, "signal": "SIGTERM", "reason": "timeout"}
    assert exited.items() <= record.metas("processExited")[0].items()
    assert record.metas("recordSealed")[0]["exit"] == exited
    sent = [(meta["signal"], meta["reason"]) for meta in record.metas("signalSent")]
    assert sent == [("SIGTERM", "timeout")]


def test_what_could_not_be_started_is_in_the_record(workspace: Workspace) -> None:
    boot = workspace.boot(startup=[step("true", cwd="/no/such/place")], record=ONCE)
    assert boot.wait() == 70
    record = recorded(workspace)
    assert "No such file" in record.metas("processStarted")[0]["startFailed"]
    assert record.metas("processExited")[0]["reason"] == "startFailed"
    assert record.metas("recordSealed")[0]["exit"] == {
        "code": 127,
        "signal": None,
        "reason": "startFailed",
    }


def test_what_a_step_left_in_the_background_is_recorded_as_long_as_it_writes(
    workspace: Workspace,
) -> None:
    daemon = f"({UNTIL_GO}; echo from the daemon; touch written) &"
    boot = ready(workspace.boot(startup=[step(daemon), step("true")], record=ONCE))
    workspace.go()
    eventually((workspace.directory / "written").exists)
    boot.stop()
    record = recorded(workspace)
    assert record.output(1, "stdout") == b"from the daemon\n"
    exited = next(i for i, kind in enumerate(record.kinds) if kind == "processExited")
    assert "ioChunk" in record.kinds[exited:]


def test_secrets_are_masked_in_the_record(workspace: Workspace) -> None:
    boot = ready(
        workspace.boot(
            startup=[step("echo hunter2-known; echo $A_TOKEN; echo ghp_$(printf %036d 7)")],
            secrets=["hunter2-known"],
            env={"A_TOKEN": "by-its-name"},
            record=ONCE,
        )
    )
    boot.stop()
    record = recorded(workspace)
    assert record.output(1, "stdout") == b"*" * 13 + b"\n" + b"*" * 11 + b"\n" + b"*" * 40 + b"\n"
    assert "hunter2" not in record.metas("processStarted")[0]["argv"][2]
    chunk = next(meta for meta in record.metas("ioChunk") if "masked" in meta)
    assert chunk["masked"][0] == [0, 13]


def test_a_run_that_cannot_be_recorded_is_not_started(workspace: Workspace) -> None:
    workspace.state.mkdir()
    (workspace.state / "runs").write_text("in the way")
    boot = workspace.boot(startup=[step("touch started")])
    assert boot.wait() == 70
    assert "the boot cannot be recorded" in workspace.status()["message"]
    assert not workspace.directory.exists()


def test_a_record_that_has_ended_is_not_gone_on_with(workspace: Workspace) -> None:
    ready(workspace.boot(record=ONCE)).stop()
    before = recorded(workspace).events
    assert workspace.boot(startup=[step("touch started")], record=ONCE).wait() == 70
    assert "the record of this run has ended" in workspace.status()["message"]
    assert not (workspace.directory / "started").exists()
    assert recorded(workspace).events == before


def test_a_restart_goes_on_with_the_record(workspace: Workspace) -> None:
    for _ in range(2):
        ready(workspace.boot(startup=[step("echo hello")])).stop()
    record = recorded(workspace)
    assert record.kinds.count("recordStarted") == 1
    assert "recordSealed" not in record.kinds
    assert [meta["process"] for meta in record.metas("processStarted")] == [1, 2]
    assert "coverageChanged" not in record.kinds
    stopped = record.metas("runtimeStateChanged")[-1]
    assert stopped["state"] == "stopped"
    assert stopped["totals"]["processes"] == 2
    assert [stream["bytes"] for stream in stopped["totals"]["streams"]] == [6, 0, 6, 0]


def test_a_life_that_was_killed_leaves_what_ran_as_lost(workspace: Workspace) -> None:
    boot = workspace.boot(setup=[step("touch started; sleep 60")], record=ONCE)
    eventually((workspace.directory / "started").exists)
    eventually(lambda: "processStarted" in recorded(workspace).kinds)
    boot.process.kill()
    boot.wait()
    spool = workspace.state / "runs" / workspace.run_id
    last = max(spool.glob("*.seg"))
    with last.open("ab") as file:
        file.write(b"\0\0\1\0torn")

    ready(workspace.boot(setup=[step("true")], record=ONCE)).stop()
    record = recorded(workspace)
    exits = [(meta["process"], meta["reason"]) for meta in record.metas("processExited")]
    assert exits == [(1, "lost"), (2, "exited")]
    told = record.metas("coverageChanged")
    assert [meta["state"] for meta in told] == ["off", "on"]
    assert "the recorder was killed" in told[0]["reason"]
    assert record.kinds[-1] == "recordSealed"


def test_with_the_policy_to_drop_what_finds_no_room_is_named_exactly(workspace: Workspace) -> None:
    small = ONCE | {"spoolBytes": 2_000_000, "segmentBytes": 500_000, "policy": "drop"}
    run = "head -c 5000000 /dev/zero"
    ready(workspace.boot(startup=[step(run)], record=small)).stop()
    record = recorded(workspace)
    kept = sum(len(event.body) for event in record.events)
    dropped = record.metas("telemetryDropped")
    assert kept + sum(meta["bytes"] for meta in dropped) == 5_000_000
    assert {meta["reason"] for meta in dropped} == {"spool-full"}
    stream = record.metas("recordSealed")[0]["streams"][0]
    assert stream == {
        "process": 1,
        "stream": "stdout",
        "bytes": 5_000_000,
        "dropped": 5_000_000 - kept,
    }


def test_with_the_policy_to_block_a_program_waits_for_room(workspace: Workspace) -> None:
    small = ONCE | {"spoolBytes": 2_000_000, "segmentBytes": 500_000}
    boot = workspace.boot(startup=[step("head -c 5000000 /dev/zero")], record=small)
    eventually(lambda: len(recorded(workspace).output(1, "stdout")) > 1_000_000)
    time.sleep(0.5)  # more than it takes to write the rest
    boot.stop()
    record = recorded(workspace)
    assert record.metas("processExited")[0]["signal"] == "SIGTERM"
    assert 1_000_000 < len(record.output(1, "stdout")) < 2_000_000


def test_what_other_recorders_left_open_is_sealed(workspace: Workspace) -> None:
    root = workspace.state / "runs"
    root.mkdir(parents=True)
    writer = SpoolWriter.create(str(root), "other", SpoolLimits(), "one-shot")
    writer.append(1, meta=b"{}")
    writer.close()
    ready(workspace.boot()).stop()
    sealed = recorded(workspace, "other").metas("recordSealed")[0]
    assert sealed["reason"] == "recorder-lost"


def test_a_boot_whose_record_cannot_be_written_any_more_ends_with_all_it_started(
    workspace: Workspace,
) -> None:
    small = ONCE | {"segmentBytes": 100_000}
    write = "while :; do head -c 100000 /dev/zero; sleep 0.01; done"
    boot = workspace.boot(startup=[step(f"{UNTIL_GO}; {write}")], record=small)
    eventually(lambda: "processStarted" in recorded(workspace).kinds)
    shutil.rmtree(workspace.state / "runs")
    workspace.go()
    assert boot.wait() == 70
    assert workspace.status()["phase"] == "failed"
    eventually(lambda: workspace.processes() == [])
