"""What `agent tail` says first, and what it takes for an acknowledgement."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from runs.agent.record.acks import acknowledge, read_acknowledged
from runs.agent.record.frames import Kind
from runs.agent.record.segments import open_folder
from runs.agent.record.spool import SpoolWriter
from tests.runs.agent.booted import eventually
from tests.runs.agent.test_follow import RUN, add, spool, tail_of
from tests.support.waiting import LONG_WAIT


@pytest.fixture
def writer(tmp_path: Path) -> SpoolWriter:
    """A spool of several segments with 40 events, open."""
    return spool(tmp_path, 0, segment=256)


def fill(writer: SpoolWriter) -> None:
    """Write 40 events in segments of a few."""
    for _ in range(10):
        add(writer, 4)


def acknowledged(state: Path) -> int:
    """Up to where the spool remembers that it is committed."""
    folder = open_folder(str(state / "runs" / RUN))
    try:
        return read_acknowledged(folder)
    finally:
        os.close(folder)


def test_the_first_line_says_where_the_spool_stands(tmp_path: Path, writer: SpoolWriter) -> None:
    fill(writer)
    told = {"version": 1, "runId": RUN, "spoolId": writer.spool_id}
    with tail_of(tmp_path) as tail:
        assert tail.hello == {**told, "first": 1, "last": 40, "sealed": False}

    folder = open_folder(str(tmp_path / "runs" / RUN))
    acknowledge(folder, 20)
    os.close(folder)
    writer.seal({"reason": "ended"})
    first = min(int(path.stem) for path in (tmp_path / "runs" / RUN).glob("*.seg"))
    assert 1 < first <= 21
    with tail_of(tmp_path) as tail:
        assert tail.hello == {**told, "first": first, "last": 41, "sealed": True}
        assert tail.end() == 0


def test_acknowledgements_may_come_in_pieces_and_several_at_once(
    tmp_path: Path, writer: SpoolWriter
) -> None:
    fill(writer)
    with tail_of(tmp_path) as tail:
        tail.sequences(40)
        sent = b"".join(number.to_bytes(8, "big") for number in (7, 30, 12))
        for piece in (sent[:3], sent[3:9], sent[9:]):
            tail.input.write(piece)
            tail.input.flush()
        eventually(lambda: acknowledged(tmp_path) == 30)
        tail.input.write((31).to_bytes(8, "big")[:7])
        assert tail.end() == 0
    assert acknowledged(tmp_path) == 30
    assert min(int(path.stem) for path in (tmp_path / "runs" / RUN).glob("*.seg")) > 20
    writer.close()


def test_what_is_acknowledged_with_the_end_of_the_input_is_remembered(
    tmp_path: Path, writer: SpoolWriter
) -> None:
    fill(writer)
    with tail_of(tmp_path) as tail:
        tail.sequences(40)
        for number in range(1, 41):
            tail.acknowledge(number)
        assert tail.end() == 0
    assert acknowledged(tmp_path) == 40
    writer.close()


def test_the_end_is_remembered_at_once_however_soon_it_comes_after_another_acknowledgement(
    tmp_path: Path, writer: SpoolWriter
) -> None:
    fill(writer)
    with tail_of(tmp_path, change=f"follow._ACK_SECONDS = {2 * LONG_WAIT}") as tail:
        tail.sequences(40)
        tail.acknowledge(30)
        eventually(lambda: acknowledged(tmp_path) == 30)
        writer.seal({"reason": "ended"})
        assert tail.sequences(1) == [41]
        tail.acknowledge(41)
        assert tail.event() is None
        assert tail.process.wait(LONG_WAIT) == 0
    assert not (tmp_path / "runs" / RUN).exists()


@pytest.mark.parametrize("start", [1, 2, 20, 39, 40])
def test_it_begins_with_the_very_event_that_is_asked_for(
    tmp_path: Path, writer: SpoolWriter, start: int
) -> None:
    fill(writer)
    with tail_of(tmp_path, start) as tail:
        assert tail.sequences(41 - start) == list(range(start, 41))
        add(writer, 1)
        assert tail.sequences(1) == [41]
    writer.close()


def test_the_end_that_another_tail_was_told_of_is_the_end_of_this_one(
    tmp_path: Path, writer: SpoolWriter
) -> None:
    fill(writer)
    with tail_of(tmp_path) as first, tail_of(tmp_path) as second:
        assert first.sequences(40) == second.sequences(40)
        writer.seal({"reason": "ended"})
        event = first.event()
        assert event is not None
        assert (event.sequence, event.kind) == (41, Kind.RECORD_SEALED)
        assert json.loads(event.meta)["events"] == 41
        assert second.sequences(1) == [41]
        first.acknowledge(41)
        assert first.process.wait(LONG_WAIT) == 0
        assert second.event() is None
        assert second.process.wait(LONG_WAIT) == 0
    assert not (tmp_path / "runs" / RUN).exists()


def test_a_tail_that_has_missed_the_end_ends_when_the_spool_is_gone(
    tmp_path: Path, writer: SpoolWriter
) -> None:
    fill(writer)
    with tail_of(tmp_path) as first, tail_of(tmp_path) as second:
        assert first.sequences(40) == second.sequences(40)
        second.process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{second.process.pid}/stat")
        eventually(lambda: stat.read_text().rpartition(") ")[2].startswith("T"))
        writer.seal({"reason": "ended"})
        assert first.sequences(1) == [41]
        first.acknowledge(41)
        assert first.process.wait(LONG_WAIT) == 0
        second.process.send_signal(signal.SIGCONT)
        assert second.event() is None
        assert second.process.wait(LONG_WAIT) == 0


def test_little_that_follows_closely_waits_for_a_moment_only(
    tmp_path: Path, writer: SpoolWriter
) -> None:
    fill(writer)
    with tail_of(tmp_path) as tail:
        tail.sequences(40)
        began = time.monotonic()
        for sequence in range(41, 71):
            add(writer, 1)
            assert tail.sequences(1) == [sequence]
        # Thirty moments of 5 ms each, on a machine that may be busy.
        assert time.monotonic() - began < 20
    writer.close()
