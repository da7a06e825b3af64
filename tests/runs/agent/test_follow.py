"""`agent tail`: every frame from any sequence, live, until the end is committed elsewhere."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runs.agent.record.acks import acknowledge, read_acknowledged
from runs.agent.record.follow import Gathering, Pace, Rounds
from runs.agent.record.frames import PREFIX, Event, Kind, decode, frames
from runs.agent.record.resting import KEEPALIVE_SECONDS, SOCKET_NAME
from runs.agent.record.segments import open_folder, segment_name
from runs.agent.record.spool import SpoolExists, SpoolLimits, SpoolWriter
from tests.runs.agent.booted import eventually
from tests.runs.recording.scripted_agent import framed
from tests.stack.disks import fill
from tests.support.waiting import LONG_WAIT

RUN = "5d9ac2ae-2f4e-4c1b-9a74-2b1d6f0c7a55"


_PROGRAM = """
import os, sys
from runs.agent.__main__ import main
from runs.agent.record import follow
from runs.agent.record.resting import Rest
{change}
code = {call}
sys.stderr.flush()
os._exit(code)  # as PID 1 ends one that it has started
"""


_TELLING_LOOKS = """
check = follow._Tail._check_end

def check_and_tell(tail):
    check(tail)
    with open({!r}, "a") as looks:
        looks.write(".")

follow._Tail._check_end = check_and_tell
"""
"""Writes a dot into a file after each look whether its record is cut off."""


class Tail:
    """The subcommand as a process, and its two pipes."""

    def __init__(
        self,
        state: Path,
        start: int,
        *,
        keepalive_seconds: float | None = None,
        change: str = "",
        rest: Sequence[Any] = (),
        before: Sequence[str] = (),
    ) -> None:
        arguments = ["tail", RUN, "--from", str(start), "--state-dir", str(state)]
        call = f"main({arguments!r})"
        root = str(state / "runs")
        if keepalive_seconds is not None:
            given = f"{root!r}, {RUN!r}, {start}, keepalive_seconds={keepalive_seconds}"
            call = f"follow.tail({given})"
        if rest:
            call = f"follow.go_on({root!r}, Rest(*{rest!r}))"
        program = _PROGRAM.format(change=change, call=call)
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin
        assert self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout
        line = b"" if rest else self.output.readline()
        self.hello: dict[str, Any] = json.loads(line) if line else {}

    def event(self) -> Event | None:
        """The next event; None at the end."""
        while True:
            prefix = self.output.read(PREFIX.size)
            if len(prefix) < PREFIX.size:
                return None
            length = PREFIX.unpack(prefix)[0]
            if length:
                return decode(self.output.read(length))

    def sequences(self, count: int) -> list[int]:
        """The sequences of the next events."""
        events = [self.event() for _ in range(count)]
        return [event.sequence for event in events if event]

    def acknowledge(self, sequence: int) -> None:
        """Say that everything up to there is committed."""
        self.input.write(sequence.to_bytes(8, "big"))
        self.input.flush()

    def end(self) -> int:
        """Close the input, read on to the end, and return the exit code."""
        self.input.close()
        self.output.read()
        return self.process.wait(LONG_WAIT)


@contextmanager
def tail_of(
    state: Path,
    start: int = 1,
    *,
    keepalive_seconds: float | None = None,
    change: str = "",
    rest: Sequence[Any] = (),
) -> Iterator[Tail]:
    tail = Tail(state, start, keepalive_seconds=keepalive_seconds, change=change, rest=rest)
    try:
        yield tail
    finally:
        tail.process.kill()
        with tail.process:
            pass


def spool(
    state: Path, events: int = 0, *, size: int = 10, mode: str = "one-shot", segment: int = 1024
) -> SpoolWriter:
    limits = SpoolLimits(1 << 20, segment)
    writer = SpoolWriter.create(str(state / "runs"), RUN, limits, mode)
    add(writer, events, size=size)
    return writer


def add(writer: SpoolWriter, events: int, *, size: int = 10) -> None:
    for _ in range(events):
        assert writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x" * size)
    writer.flush()


def acknowledged(state: Path) -> int:
    """What is remembered of acknowledgements."""
    directory = open_folder(str(state / "runs" / RUN))
    try:
        return read_acknowledged(directory)
    finally:
        os.close(directory)


def test_it_begins_at_any_sequence_and_follows_what_is_written(tmp_path: Path) -> None:
    writer = spool(tmp_path, 100)
    with tail_of(tmp_path, 42) as tail:
        assert tail.hello["last"] == 100
        assert not tail.hello["sealed"]
        assert tail.sequences(59) == list(range(42, 101))
        add(writer, 3)
        assert tail.sequences(3) == [101, 102, 103]
    writer.close()


def test_the_folder_is_removed_once_the_end_is_acknowledged_and_the_run_never_starts_again(
    tmp_path: Path,
) -> None:
    spool(tmp_path, 5).seal({"reason": "ended"})
    with tail_of(tmp_path) as tail:
        assert tail.sequences(6) == [1, 2, 3, 4, 5, 6]
        tail.acknowledge(6)
        assert tail.event() is None
        assert tail.process.wait(LONG_WAIT) == 0
    assert not (tmp_path / "runs" / RUN).exists()
    with pytest.raises(SpoolExists):
        spool(tmp_path)


def test_a_lost_last_acknowledgement_can_be_given_again(tmp_path: Path) -> None:
    spool(tmp_path, 5).seal({"reason": "ended"})
    with tail_of(tmp_path, 7) as tail:
        tail.acknowledge(6)
        assert tail.process.wait(LONG_WAIT) == 0
    assert not (tmp_path / "runs" / RUN).exists()


def test_nothing_is_freed_without_an_acknowledgement_and_whole_segments_with_one(
    tmp_path: Path,
) -> None:
    writer = spool(tmp_path)
    for _ in range(10):
        add(writer, 10, size=100)
    folder = tmp_path / "runs" / RUN
    before = len(list(folder.glob("*.seg")))
    with tail_of(tmp_path) as first, tail_of(tmp_path) as second:
        assert first.sequences(100) == second.sequences(100)
        assert len(list(folder.glob("*.seg"))) == before
        first.acknowledge(55)
        assert first.end() == 0
        assert min(int(path.stem) for path in folder.glob("*.seg")) in range(40, 57)
        assert second.end() == 0
    writer.close()


def test_an_acknowledgement_of_more_than_was_sent_frees_nothing_of_the_rest(
    tmp_path: Path,
) -> None:
    # Each segment is more than a pipe holds: the tail has this before it has sent the first one.
    writer = spool(tmp_path, segment=1 << 18)
    add(writer, 16, size=50_000)
    folder = tmp_path / "runs" / RUN
    assert len(list(folder.glob("*.seg"))) > 2
    with tail_of(tmp_path) as tail:
        tail.acknowledge(1000)
        assert tail.sequences(16) == list(range(1, 17))
        assert tail.end() == 0
    writer.close()
    assert acknowledged(tmp_path) == 16


def test_a_jump_inside_a_segment_is_damage(tmp_path: Path) -> None:
    writer = spool(tmp_path, 9)
    (segment,) = (tmp_path / "runs" / RUN).glob("*.seg")
    contents = list(frames(segment.read_bytes()))
    segment.write_bytes(b"".join(map(framed, [*contents[:4], *contents[5:]])))
    with tail_of(tmp_path) as tail:
        assert tail.sequences(4) == [1, 2, 3, 4]
        assert tail.event() is None
        assert tail.process.wait(LONG_WAIT) == 5
        assert tail.process.stderr
        assert b"the frame has sequence 6" in tail.process.stderr.read()
    writer.close()


@pytest.mark.parametrize("lives", [False, True], ids=["left", "written to"])
@pytest.mark.parametrize("torn", [False, True], ids=["cut between two frames", "torn"])
def test_a_segment_that_lost_its_end_is_damage_once_others_follow_it(
    tmp_path: Path, torn: bool, lives: bool
) -> None:
    writer = spool(tmp_path)
    for _ in range(3):
        add(writer, 10, size=100)
    if not lives:
        writer.close()
    _, middle, following, *_ = sorted((tmp_path / "runs" / RUN).glob("*.seg"))
    *_, last = map(framed, frames(middle.read_bytes()))
    os.truncate(middle, middle.stat().st_size - (3 if torn else len(last)))
    with tail_of(tmp_path) as tail:
        whole = list(range(1, int(following.stem) - 1))
        assert tail.sequences(len(whole)) == whole
        assert tail.event() is None
        assert tail.process.wait(LONG_WAIT) == 5
        assert tail.process.stderr
        assert f"sequence {len(whole) + 1}" in tail.process.stderr.read().decode()
    writer.close()


def test_an_end_that_was_acknowledged_and_that_an_outage_took_is_no_damage(tmp_path: Path) -> None:
    spool(tmp_path, 9, mode="boot").close()
    folder = tmp_path / "runs" / RUN
    (segment,) = folder.glob("*.seg")
    contents = list(frames(segment.read_bytes()))
    os.truncate(segment, sum(len(framed(content)) for content in contents[:6]))
    directory = open_folder(str(folder))
    acknowledge(directory, 9)
    os.close(directory)
    (folder / segment_name(10)).touch()
    looks = tmp_path / "looks"
    looks.touch()
    with tail_of(tmp_path, change=_TELLING_LOOKS.format(str(looks))) as tail:
        assert tail.sequences(6) == [1, 2, 3, 4, 5, 6]
        before = looks.stat().st_size
        # The second look at the same end would call it damaged.
        eventually(lambda: looks.stat().st_size >= before + 3 or tail.process.poll() is not None)
        assert tail.process.poll() is None
        writer = SpoolWriter.reopen(str(tmp_path / "runs"), RUN)
        add(writer, 1)
        assert tail.sequences(1) == [10]
    writer.close()


def test_a_dead_writers_record_is_repaired_and_sealed_as_lost(tmp_path: Path) -> None:
    spool(tmp_path, 5).close()
    (segment,) = (tmp_path / "runs" / RUN).glob("*.seg")
    os.truncate(segment, segment.stat().st_size - 3)
    with tail_of(tmp_path) as tail:
        assert tail.sequences(4) == [1, 2, 3, 4]
        last = tail.event()
    assert last is not None
    assert last.kind == Kind.RECORD_SEALED
    told = json.loads(last.meta)
    assert (told["reason"], told["events"]) == ("recorder-lost", 5)
    assert told["exit"] == {"code": None, "signal": None, "reason": "lost"}
    assert told["streams"] == [{"process": 1, "stream": "stdout", "bytes": 10, "dropped": 0}]


def without_room_for_its_end(disk: Path) -> Path:
    """The spool of 100 events of a dead writer, on a disk that is full; what takes the room."""
    writer = spool(disk, segment=1 << 16)
    # The end names each stream: that is more than what is left of a page of the disk.
    for process in range(1, 101):
        assert writer.append(Kind.IO_CHUNK, process=process, stream=2, body=b"x")
    writer.close()
    (disk / "runs" / RUN / "reserve").unlink()
    return fill(disk)


def test_a_dead_writers_record_is_sent_also_while_the_disk_has_no_room_for_its_end(
    small_disk: Path,
) -> None:
    ballast = without_room_for_its_end(small_disk)
    (segment,) = (small_disk / "runs" / RUN).glob("*.seg")
    whole = segment.read_bytes()
    with segment.open("ab") as torn:
        torn.write(whole[:7])
    with tail_of(small_disk) as tail:
        assert (tail.hello["last"], tail.hello["sealed"]) == (100, False)
        assert tail.sequences(100) == list(range(1, 101))
        tail.acknowledge(99)
        eventually(lambda: acknowledged(small_disk) == 99)
        # Each look writes what there is room for, and cuts it.
        eventually(lambda: segment.read_bytes() == whole)
        ballast.unlink()
        last = tail.event()
        assert last is not None
        assert (last.kind, last.sequence) == (Kind.RECORD_SEALED, 101)
        assert json.loads(last.meta)["reason"] == "recorder-lost"
        tail.acknowledge(101)
        assert tail.event() is None
        assert tail.process.wait(LONG_WAIT) == 0


@pytest.mark.parametrize("remembered", [True, False], ids=["remembered", "not remembered"])
def test_only_the_end_of_a_record_that_the_disk_has_no_room_for_is_not_waited_for(
    small_disk: Path, remembered: bool
) -> None:
    ballast = without_room_for_its_end(small_disk)
    if not remembered:
        # A disk that takes no acknowledgement either.
        (small_disk / "runs" / RUN / "acked").unlink()
        fill(small_disk)
    with tail_of(small_disk) as tail:
        assert tail.sequences(100) == list(range(1, 101))
        tail.acknowledge(100)
        assert tail.process.wait(LONG_WAIT) == 5
        assert tail.event() is None
        assert tail.process.stderr
        assert b"the disk has no room for the end of the record" in tail.process.stderr.read()
    assert acknowledged(small_disk) == (100 if remembered else 0)
    with tail_of(small_disk, 101) as again:
        assert bool(again.hello) is not remembered
        if not remembered:
            again.acknowledge(100)
        assert again.process.wait(LONG_WAIT) == 5
        assert again.event() is None
    ballast.unlink()
    with tail_of(small_disk, 101) as last:
        assert last.sequences(1) == [101]


def test_what_is_acknowledged_frees_room_for_the_end_of_a_dead_writers_record(
    small_disk: Path,
) -> None:
    writer = spool(small_disk, 0, segment=1 << 14)
    for _ in range(4):
        add(writer, 1, size=1 << 14)
    writer.close()
    (small_disk / "runs" / RUN / "reserve").unlink()
    fill(small_disk)
    with tail_of(small_disk) as tail:
        assert not tail.hello["sealed"]
        assert tail.sequences(4) == [1, 2, 3, 4]
        tail.acknowledge(4)
        last = tail.event()
    assert last is not None
    assert last.kind == Kind.RECORD_SEALED


def test_a_full_disk_takes_the_first_acknowledgement(small_disk: Path) -> None:
    writer = spool(small_disk, 5)
    fill(small_disk)
    with tail_of(small_disk) as tail:
        assert tail.sequences(5) == [1, 2, 3, 4, 5]
        tail.acknowledge(5)
        assert tail.end() == 0
    assert acknowledged(small_disk) == 5
    writer.close()


def test_an_acknowledgement_that_the_disk_has_no_room_for_is_remembered_once_it_has(
    small_disk: Path,
) -> None:
    writer = spool(small_disk, 5)
    kept = small_disk / "runs" / RUN / "acked"
    kept.unlink()
    ballast = fill(small_disk)
    with tail_of(small_disk, keepalive_seconds=0.01) as tail:
        assert tail.sequences(5) == [1, 2, 3, 4, 5]
        tail.acknowledge(5)
        eventually(kept.exists)  # so it was tried
        assert acknowledged(small_disk) == 0
        ballast.unlink()
        eventually(lambda: acknowledged(small_disk) == 5)
        assert tail.end() == 0
    writer.close()


def test_what_is_left_of_an_abandoned_run_is_ended_before_its_record(tmp_path: Path) -> None:
    spool(tmp_path, 1).close()
    left = subprocess.Popen(["sleep", "600"], env={**os.environ, "SVC_RUN_ID": RUN})
    try:
        with tail_of(tmp_path) as tail:
            assert tail.sequences(2) == [1, 2]
            assert left.poll() is not None or left.wait(LONG_WAIT)
    finally:
        left.kill()
        left.wait()


def test_the_record_of_a_boot_is_left_to_the_next_boot(tmp_path: Path) -> None:
    spool(tmp_path, 2, mode="boot").close()
    with tail_of(tmp_path) as tail:
        assert tail.sequences(2) == [1, 2]
        writer = SpoolWriter.reopen(str(tmp_path / "runs"), RUN)
        add(writer, 1)
        assert tail.sequences(1) == [3]
    writer.close()


def test_damage_with_more_behind_it_is_told_after_what_is_sound(tmp_path: Path) -> None:
    spool(tmp_path, 9).seal({"reason": "ended"})
    segment = min((tmp_path / "runs" / RUN).glob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[4 * len(content) // 10] ^= 1
    segment.write_bytes(content)
    with tail_of(tmp_path) as tail:
        tail.output.read()
        assert tail.process.wait(LONG_WAIT) == 5
        assert tail.process.stderr
        assert b"sequence" in tail.process.stderr.read()


def test_a_folder_that_holds_nothing_is_told_as_damage(tmp_path: Path) -> None:
    (tmp_path / "runs" / RUN).mkdir(parents=True)
    with tail_of(tmp_path) as tail:
        assert tail.process.wait(LONG_WAIT) == 5
        assert tail.process.stderr
        assert b"spool.json is missing" in tail.process.stderr.read()


def test_a_run_without_a_spool_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    with tail_of(tmp_path) as tail:
        assert tail.process.wait(LONG_WAIT) == 4


def test_an_idle_tail_sends_empty_frames_and_goes_on_with_what_is_written(tmp_path: Path) -> None:
    writer = spool(tmp_path, 1)
    with tail_of(tmp_path, keepalive_seconds=0.01) as tail:
        assert tail.sequences(1) == [1]
        assert tail.output.read(4 * PREFIX.size) == bytes(4 * PREFIX.size)
        add(writer, 1)
        assert tail.sequences(1) == [2]
        assert tail.end() == 0
    writer.close()


def test_an_idle_tail_reads_next_to_nothing_between_two_empty_frames(tmp_path: Path) -> None:
    writer = spool(tmp_path, 1)
    with tail_of(tmp_path, keepalive_seconds=0.01) as tail:
        assert tail.sequences(1) == [1]
        before = reads_of(tail.process.pid)
        assert tail.output.read(60 * PREFIX.size) == bytes(60 * PREFIX.size)
        assert reads_of(tail.process.pid) - before < 60 * 20
        assert acknowledged(tmp_path) == 0
    writer.close()


def test_a_write_wakes_a_tail_that_would_not_look_for_news_for_long(tmp_path: Path) -> None:
    writer = spool(tmp_path, 1)
    seldom = f"follow._LOOKS = ((0.0, {2 * LONG_WAIT}, {2 * LONG_WAIT}),)"
    with tail_of(tmp_path, keepalive_seconds=2 * LONG_WAIT, change=seldom) as tail:
        assert tail.sequences(1) == [1]
        for sequence in (2, 3, 4):
            eventually(lambda: sleeps(tail.process.pid))
            add(writer, 1)
            assert tail.sequences(1) == [sequence]
        assert tail.end() == 0
    writer.close()


def sleeps(pid: int) -> bool:
    """Whether a process waits for something, as it did a moment ago."""

    def seen() -> tuple[str, str]:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        told = dict(line.split(":\t", 1) for line in lines)
        return told["State"][0], told["voluntary_ctxt_switches"]

    earlier = seen()
    time.sleep(0.01)
    return seen() == earlier and earlier[0] == "S"


def reads_of(pid: int) -> int:
    """How often a process has read anything."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["syscr"])


def test_what_looks_damaged_while_it_is_written_is_waited_for(tmp_path: Path) -> None:
    writer = spool(tmp_path, 4)
    (segment,) = (tmp_path / "runs" / RUN).glob("*.seg")
    content = segment.read_bytes()
    segment.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    patient = f"follow._WAIT_SECONDS = {LONG_WAIT}"
    with tail_of(tmp_path, keepalive_seconds=0.01, change=patient) as tail:
        assert tail.sequences(3) == [1, 2, 3]
        # So it has looked at the fourth one, more than once.
        assert tail.output.read(4 * PREFIX.size) == bytes(4 * PREFIX.size)
        segment.write_bytes(content)
        assert tail.sequences(1) == [4]
    writer.close()


def test_all_that_was_written_is_passed_on_also_when_the_input_ends_at_once(
    tmp_path: Path,
) -> None:
    writer = spool(tmp_path, segment=256)
    for _ in range(20):
        add(writer, 1, size=200)
    assert len(list((tmp_path / "runs" / RUN).glob("*.seg"))) >= 10
    with tail_of(tmp_path) as tail:
        tail.input.close()
        assert tail.sequences(20) == list(range(1, 21))
        assert tail.event() is None
        assert tail.process.wait(LONG_WAIT) == 0
    writer.close()


def test_a_tail_whose_reader_is_gone_ends_in_order(tmp_path: Path) -> None:
    writer = spool(tmp_path, 1)
    with tail_of(tmp_path, keepalive_seconds=0.01) as tail:
        tail.output.close()
        assert tail.process.stderr
        assert tail.process.stderr.read() == b""
        assert tail.process.wait(LONG_WAIT) == 0
    writer.close()


def test_a_tail_does_not_rest_soon_after_news(tmp_path: Path) -> None:
    writer = spool(tmp_path, 1)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / SOCKET_NAME))
        listening.listen()
        listening.setblocking(False)
        with tail_of(tmp_path, keepalive_seconds=0.01) as tail:
            assert tail.sequences(1) == [1]
            assert tail.output.read(4 * PREFIX.size) == bytes(4 * PREFIX.size)
            with pytest.raises(BlockingIOError):
                listening.accept()
    writer.close()


def test_a_tail_that_rests_is_gone_on_with_where_it_stopped(tmp_path: Path) -> None:
    writer = spool(tmp_path, 5)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / SOCKET_NAME))
        listening.listen()
        listening.settimeout(LONG_WAIT)
        with tail_of(tmp_path, change="follow._RESTS_AFTER_SECONDS = 0.0") as tail:
            assert tail.sequences(5) == [1, 2, 3, 4, 5]
            connection, _ = listening.accept()
            with connection:
                line, streams, *_ = socket.recv_fds(connection, 4096, 2)
                assert len(streams) == 2
                for stream in streams:
                    os.close(stream)
                connection.send(b"+")
            assert tail.process.wait(LONG_WAIT) == 0
    rest = json.loads(line)["rest"]
    add(writer, 2)
    with tail_of(tmp_path, rest=rest) as tail:
        assert tail.sequences(2) == [6, 7]
        writer.seal({"reason": "ended"})
        assert tail.sequences(1) == [8]
        tail.acknowledge(8)
        assert tail.event() is None
        assert tail.process.wait(LONG_WAIT) == 0
    assert not (tmp_path / "runs" / RUN).exists()
    with tail_of(tmp_path, rest=rest) as tail:
        assert tail.event() is None
        assert tail.process.wait(LONG_WAIT) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_its_container_is_no_end_of_a_tail_before_that_of_the_record(
    tmp_path: Path, number: signal.Signals
) -> None:
    writer = spool(tmp_path, 3)
    with tail_of(tmp_path) as tail:
        assert tail.sequences(3) == [1, 2, 3]
        for _ in range(3):
            tail.process.send_signal(number)
        writer.seal({"reason": "stopped"})
        assert tail.sequences(1) == [4]
        tail.acknowledge(4)
        assert tail.process.wait(LONG_WAIT) == 0
    assert not (tmp_path / "runs" / RUN).exists()


_WRITE = """
import sys
from runs.agent.record.frames import Kind
from runs.agent.record.spool import SpoolLimits, SpoolWriter
writer = SpoolWriter.create(sys.argv[1], sys.argv[2], SpoolLimits(1 << 18, 1 << 14), "one-shot")
number = 0
while True:
    body = b"%8d" % number * 20
    if writer.append(Kind.IO_CHUNK, process=1, stream=2, offset=160 * number, body=body):
        number += 1
    writer.tick()
"""


def test_a_writer_that_fills_its_spool_is_followed_until_it_is_killed_and_to_the_end(
    tmp_path: Path,
) -> None:
    root = tmp_path / "runs"
    with subprocess.Popen([sys.executable, "-c", _WRITE, str(root), RUN]) as writer:
        while not (root / RUN).exists():
            assert writer.poll() is None
        with tail_of(tmp_path) as tail:
            # Many times what the spool holds: the writer waits for what is acknowledged here.
            for sequence in range(1, 10_001):
                event = tail.event()
                assert event is not None
                assert event.sequence == sequence
                assert event.body == b"%8d" % (sequence - 1) * 20
                if sequence % 100 == 0:
                    tail.acknowledge(sequence)
            writer.send_signal(signal.SIGKILL)
            sequence += 1
            while (event := tail.event()) is not None:
                assert event.sequence == sequence
                if event.kind == Kind.RECORD_SEALED:
                    assert json.loads(event.meta)["reason"] == "recorder-lost"
                    assert json.loads(event.meta)["events"] == sequence
                    tail.acknowledge(sequence)
                sequence += 1
            assert tail.process.wait(LONG_WAIT) == 0
    assert not (root / RUN).exists()


@pytest.mark.parametrize(
    ("segment_mib", "sealed", "slow"), [(4, False, True), (4, True, False), (16, False, False)]
)
def test_much_output_gives_way_while_its_run_goes_on_and_its_spool_has_room(
    tmp_path: Path, segment_mib: int, sealed: bool, slow: bool
) -> None:
    limits = SpoolLimits(64 << 20, segment_mib << 20)
    writer = SpoolWriter.create(str(tmp_path / "runs"), RUN, limits, "one-shot")
    count = 7 * 24 if segment_mib < 16 else 7 * 40
    add(writer, count, size=150_000)
    writer.sync()
    if sealed:
        writer.seal({"reason": "ended"})
    began = time.monotonic()
    with tail_of(tmp_path) as tail:
        assert len(tail.sequences(count)) == count
        took = time.monotonic() - began
    # 24 MiB, of which 8 come at once and the others at 16 MiB/s; and others as fast as they can.
    assert took > 0.9 or not slow
    directory = open_folder(str(tmp_path / "runs" / RUN))
    pace = Pace(str(tmp_path / "runs"), RUN, directory)
    pauses = [pace.pause(150_000) for _ in range(count)]
    assert (max(pauses) > 0) == slow
    os.close(directory)
    if not sealed:
        writer.close()


def test_little_is_sent_at_once_after_a_pause_and_gathered_while_more_follows() -> None:
    gathering = Gathering()
    began = 100.0
    assert [gathering.pause(40, began + number / 1000) for number in range(2)] == [0.0, 0.0]
    gathered = [gathering.pause(40, began + 0.002 + number / 100) for number in range(50)]
    assert all(pause > 0 for pause in gathered)
    assert gathering.pause(1 << 20, began + 0.51) == 0.0
    assert gathering.pause(40, began + 1.0) == 0.0


def woken(rounds: Rounds, now: float, until: float) -> tuple[list[float], list[float], list[float]]:
    """When an idle tail wakes, looks and speaks; the kernel would tell of news."""
    wakes, looks, speaks = [], [], []
    while (now := now + rounds.pause(now, told=True)) < until:
        wakes.append(now)
        if rounds.looks(now):
            looks.append(now)
        if rounds.speaks(now):
            speaks.append(now)
    return wakes, looks, speaks


def test_a_tail_at_rest_wakes_once_for_all_that_it_does_by_itself() -> None:
    rounds = Rounds(KEEPALIVE_SECONDS, 0.0)
    rounds.sent(1.5)  # looks and keepalives are out of step from here on

    woken(rounds, 1.5, 40.0)
    wakes, looks, speaks = woken(rounds, 40.0, 640.0)

    assert wakes == looks == speaks
    assert {after - before for before, after in pairwise(wakes)} == {KEEPALIVE_SECONDS}


def test_a_tail_looks_often_after_news_and_when_an_end_is_announced() -> None:
    rounds = Rounds(KEEPALIVE_SECONDS, 0.0)
    rounds.sent(0.0)
    _, looks, _ = woken(rounds, 0.0, 30.0)
    assert looks[:4] == [0.25, 0.5, 0.75, 1.0]
    assert max(after - before for before, after in pairwise(looks)) == 1.0
    woken(rounds, 30.0, 100.0)

    rounds.expects(100.0)

    assert rounds.looks(100.0)
    assert woken(rounds, 100.0, 101.0)[1] == [100.25, 100.5, 100.75]


def test_a_tail_that_is_told_of_nothing_looks_for_news_however_long_it_was_idle() -> None:
    rounds = Rounds(KEEPALIVE_SECONDS, 0.0)
    assert [rounds.pause(now, told=False) for now in (0.0, 2.0, 30.0, 3000.0)] == [
        0.01,
        0.03,
        0.2,
        0.2,
    ]
    assert rounds.pause(3000.0, told=True, sealed=True) == 0.2
