"""`agent verify`: says what a spool holds, or where the first bad frame is, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runs.agent.__main__ import main
from runs.agent.record.frames import Kind
from runs.agent.record.repair import open_runs, seal_abandoned
from runs.agent.record.spool import SpoolFailed, SpoolLimits, SpoolWriter

RUN = "5d9ac2ae-2f4e-4c1b-9a74-2b1d6f0c7a55"


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    writer = SpoolWriter.create(str(tmp_path / "runs"), RUN, SpoolLimits(), "one-shot")
    for _ in range(8):
        writer.append(Kind.IO_CHUNK, body=b"hello")
    writer.close()
    (path,) = (tmp_path / "runs" / RUN).glob("*.seg")
    return path


def verify(tmp_path: Path) -> int:
    return main(["verify", RUN, "--state-dir", str(tmp_path)])


def test_a_sound_spool_and_one_with_a_torn_tail_pass(
    tmp_path: Path, segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path) == 0
    with segment.open("ab") as file:
        file.write(b"\0\0\0\x39torn")
    assert verify(tmp_path) == 0
    assert "sequence 8, and 8 bytes" in capsys.readouterr().out


def test_the_first_bad_frame_is_named_and_no_repair_cuts_what_is_behind_it(
    tmp_path: Path, segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray(segment.read_bytes())
    content[3 * len(content) // 8 + 20] ^= 1
    segment.write_bytes(content)
    assert verify(tmp_path) == 1
    assert "sequence 4" in capsys.readouterr().err
    with pytest.raises(SpoolFailed, match="sequence 4"):
        SpoolWriter.reopen(str(tmp_path / "runs"), RUN)
    seal_abandoned(str(tmp_path / "runs"))
    assert segment.read_bytes() == content


def test_runs_lists_what_waits_here(
    tmp_path: Path, segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path / "runs")
    assert open_runs(root) == []
    writer = SpoolWriter.reopen(root, RUN)
    assert open_runs(root) == [RUN]
    assert main(["runs", "--state-dir", str(tmp_path)]) == 0
    writer.close()
    (run,) = json.loads(capsys.readouterr().out)
    assert run["lastSequence"] == 8
    assert run["spoolBytes"] == segment.stat().st_size
    assert run["writerAlive"]
    assert not run["sealed"]


def test_a_boot_seals_what_a_crash_left_open(tmp_path: Path, segment: Path) -> None:
    root = str(tmp_path / "runs")
    seal_abandoned(root)
    writer = SpoolWriter.reopen(root, RUN)
    assert (writer.sealed, writer.last_sequence) == (True, 9)
    writer.close()
