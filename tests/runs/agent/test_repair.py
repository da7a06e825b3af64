"""Ending the records of writers that have died: what the end says, and who is still alive."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from runs.agent.record import repair
from runs.agent.record.frames import Kind, decode, frames
from runs.agent.record.segments import Reader, open_folder
from runs.agent.record.spool import SpoolFailed, SpoolLimits, SpoolWriter
from tests.support.waiting import LONG_WAIT

RUN = str(uuid.uuid4())
"""Of this file alone: what has it is killed, wherever on the machine it runs."""
EXITED = {"code": 3, "signal": None, "reason": "exited"}
LOST = {"code": None, "signal": None, "reason": "lost"}


def died(root: Path, mode: str, *, leader: bool, exit_: dict[str, Any] | None) -> None:
    """Leave a spool whose writer is gone, with a leader that has ended so, or has not."""
    writer = SpoolWriter.create(str(root), RUN, SpoolLimits(1 << 20, 1 << 14), mode)
    writer.append(Kind.RECORD_STARTED, meta=b"{}")
    if leader:
        meta = json.dumps({"leader": True, "pid": 7, "argv": ["x"], "streams": ["stdout"]})
        writer.append(Kind.PROCESS_STARTED, process=1, meta=meta.encode())
        writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"some")
    if exit_ is not None:
        writer.append(Kind.PROCESS_EXITED, process=1, meta=json.dumps(exit_).encode())
    writer.close()


def end_of(root: Path) -> dict[str, Any]:
    """Return what the last event of the record says."""
    directory = open_folder(str(root / RUN))
    reader = Reader(directory, 1)
    events = []
    while (batch := reader.read()) is not None:
        events += [decode(content) for content in frames(bytes(batch.data))]
    reader.close()
    os.close(directory)
    assert events[-1].kind == Kind.RECORD_SEALED
    told: dict[str, Any] = json.loads(events[-1].meta)
    return told


@pytest.mark.parametrize(
    ("mode", "leader", "exit_", "expected"),
    [
        ("one-shot", False, None, LOST),
        ("one-shot", True, None, LOST),
        ("one-shot", True, EXITED, EXITED),
        ("interactive", False, None, None),
        ("interactive", True, None, LOST),
        ("interactive", True, EXITED, EXITED),
        ("boot", True, EXITED, LOST),
    ],
)
def test_the_end_says_that_the_recorder_is_lost_and_how_the_program_ended_if_that_is_known(
    tmp_path: Path,
    mode: str,
    leader: bool,
    exit_: dict[str, Any] | None,
    expected: dict[str, Any] | None,
) -> None:
    died(tmp_path, mode, leader=leader, exit_=exit_)

    assert repair.repair(str(tmp_path), RUN) is True

    told = end_of(tmp_path)
    assert (told["by"], told["reason"], told["exit"]) == ("agent", "recorder-lost", expected)
    assert told["events"] == 2 + 2 * leader + (exit_ is not None)
    assert told["processes"] == int(leader)
    assert repair.repair(str(tmp_path), RUN) is False


def test_what_a_run_has_left_is_ended_before_its_record_and_nothing_else_is(
    tmp_path: Path,
) -> None:
    died(tmp_path, "one-shot", leader=True, exit_=None)
    runs = (RUN, RUN, RUN + "0", "")
    processes = [
        subprocess.Popen(["sleep", "600"], env={**os.environ, "SVC_RUN_ID": run}) for run in runs
    ]
    try:
        assert repair.repair(str(tmp_path), RUN) is True
        assert [process.wait(LONG_WAIT) for process in processes[:2]] == [-9, -9]
        assert [process.poll() for process in processes[2:]] == [None, None]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_record_whose_writer_lives_is_left_alone(tmp_path: Path) -> None:
    root = str(tmp_path)
    writer = SpoolWriter.create(root, RUN, SpoolLimits(1 << 20, 1 << 14), "one-shot")
    assert repair.has_writer(str(tmp_path / RUN)) is True
    assert (repair.repair(root, RUN), repair.seal_abandoned(root)) == (False, [])
    assert (repair.run_ids(root), repair.open_runs(root)) == ([RUN], [RUN])
    writer.close()
    assert repair.has_writer(str(tmp_path / RUN)) is False
    assert repair.open_runs(root) == []
    assert repair.seal_abandoned(root) == [RUN]


@pytest.mark.parametrize("told", [None, b"", b"[]", b'{"runId": "x", "spoolBytes": 1}'])
def test_a_folder_that_does_not_say_whose_it_is_is_left_and_others_are_sealed(
    tmp_path: Path, told: bytes | None
) -> None:
    died(tmp_path, "one-shot", leader=True, exit_=None)
    folder = tmp_path / "0"
    folder.mkdir()
    if told is not None:
        (folder / "spool.json").write_bytes(told)
    descriptors = Path("/proc/self/fd")
    open_before = len(list(descriptors.iterdir()))

    assert repair.seal_abandoned(str(tmp_path)) == [RUN]

    assert end_of(tmp_path)["reason"] == "recorder-lost"
    assert len(list(descriptors.iterdir())) == open_before
    with pytest.raises(SpoolFailed, match="is missing or not whole"):
        repair.repair(str(tmp_path), "0")


def test_what_is_not_there_has_no_writer_and_no_runs(tmp_path: Path) -> None:
    assert repair.has_writer(str(tmp_path / "none")) is False
    assert repair.run_ids(str(tmp_path / "none")) == []
    assert repair.repair(str(tmp_path), RUN) is False


def test_runs_come_in_a_fixed_order_and_what_begins_with_a_dot_is_none(tmp_path: Path) -> None:
    for name in ("b", ".done", "a", ".new-x"):
        (tmp_path / name).mkdir()
    assert repair.run_ids(str(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("mode", ["boot", "one-shot", "interactive"])
def test_a_boots_spool_is_known_by_its_mode(tmp_path: Path, mode: str) -> None:
    SpoolWriter.create(str(tmp_path), RUN, SpoolLimits(1 << 20, 1 << 14), mode).close()
    directory = open_folder(str(tmp_path / RUN))
    assert repair.is_of_a_boot(directory) is (mode == "boot")
    os.close(directory)
