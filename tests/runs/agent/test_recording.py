"""The recording core: chunks, offsets, masks, and every byte that finds no room is named."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runs.agent.masking.masker import Masker
from runs.agent.record import recording as module
from runs.agent.record.frames import Confidence, Event, Kind, Method, Stream, decode, frames
from runs.agent.record.recorded_stream import CHUNK_BYTES
from runs.agent.record.recording import RecordedStream, Recording
from runs.agent.record.spool import SpoolLimits, SpoolWriter
from tests.runs.agent.recorded import Record, meta_of

RUN_ID = "01234567-89ab-cdef-0123-456789abcdef"
SECRET = b"correct-horse-battery"


class Recorded:
    """A recording in a folder, and what it has written."""

    def __init__(self, root: Path, *, policy: str = "block", limits: SpoolLimits | None = None):
        self.folder = root / RUN_ID
        limits = limits or SpoolLimits(64 << 20, 8 << 20)
        self.writer = SpoolWriter.create(str(root), RUN_ID, limits, "one-shot")
        self.recording = Recording(self.writer, policy=policy, masker=Masker([SECRET]))
        self.number = self.recording.process_started(
            pid=1, argv=["x"], cwd="/", leader=True, method=Method.PIPE, streams=["stdout"]
        )
        self._taken: list[Event] = []

    def stream(self, stream: int = Stream.STDOUT) -> RecordedStream:
        return self.recording.stream(self.number, stream, Method.PIPE)

    def make_room(self) -> None:
        """What an acknowledgement does: complete segments disappear."""
        for path in sorted(self.folder.glob("*.seg"))[:-1]:
            self._taken += [decode(content) for content in frames(path.read_bytes())]
            path.unlink()

    def seal(self) -> Record:
        self.recording.seal("ended", None)
        for path in sorted(self.folder.glob("*.seg")):
            self._taken += [decode(content) for content in frames(path.read_bytes())]
        return Record(self._taken)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the spool is made."""
    return tmp_path


def test_bytes_survive_any_way_of_cutting_them(root: Path) -> None:
    recorded = Recorded(root)
    content = random.Random(5).randbytes(300_000)
    stream = recorded.stream()
    position, sizes = 0, random.Random(6)
    while position < len(content):
        size = sizes.choice([1, 2, 3, 100, 4095, CHUNK_BYTES, 65537])
        stream.feed(content[position : position + size])
        position += size
    stream.close("eof")
    record = recorded.seal()
    assert record.stream(Stream.STDOUT) == content
    assert record.closed(Stream.STDOUT) == (len(content), "eof")


def test_the_first_bytes_after_a_pause_wait_for_nothing_and_the_next_ones_are_gathered(
    root: Path,
) -> None:
    recorded = Recorded(root)
    stream, before = recorded.stream(), recorded.recording.events
    stream.feed(b"first")
    recorded.recording.tick()
    assert recorded.recording.events == before + 1
    stream.feed(b"second")
    stream.feed(b"third")
    stream.close("eof")
    record = recorded.seal()
    assert [event.body for event in record.of(Kind.IO_CHUNK)] == [b"first", b"secondthird"]


def test_many_small_writes_become_one_chunk(root: Path) -> None:
    recorded = Recorded(root)
    stream = recorded.stream()
    for _ in range(1000):
        stream.feed(b"0123456789")
    stream.close("eof")
    assert len(recorded.seal().of(Kind.IO_CHUNK)) == 1


def test_what_was_gathered_is_written_without_more_to_come(root: Path) -> None:
    recorded = Recorded(root)
    stream = recorded.stream()
    stream.feed(b"prompt$ ")
    before = recorded.writer.last_sequence
    while recorded.writer.last_sequence == before:
        assert recorded.recording.deadline() is not None
        recorded.recording.tick()
    assert recorded.seal().stream(Stream.STDOUT) == b"prompt$ "


def test_a_secret_is_masked_wherever_it_is_cut(root: Path) -> None:
    recorded = Recorded(root)
    stream = recorded.stream()
    for cut in range(len(SECRET) + 1):
        stream.feed(b"<" + SECRET[:cut])
        stream.feed(SECRET[cut:] + b">")
    stream.close("eof")
    record = recorded.seal()
    assert record.stream(Stream.STDOUT) == (b"<" + b"*" * len(SECRET) + b">") * (len(SECRET) + 1)


def test_masked_ranges_are_raw_offsets_within_their_chunk(root: Path) -> None:
    recorded = Recorded(root)
    stream = recorded.stream()
    stream.feed(b"x" * (CHUNK_BYTES - 5) + SECRET + b"x" * CHUNK_BYTES)
    stream.close("eof")
    end = CHUNK_BYTES - 5 + len(SECRET)
    named = [
        meta_of(event).get("masked")
        for event in recorded.seal().of(Kind.IO_CHUNK)
        if event.offset < 2 * CHUNK_BYTES
    ]
    assert named[:2] == [[[CHUNK_BYTES - 5, CHUNK_BYTES]], [[CHUNK_BYTES, end]]]


def test_hidden_bytes_count_and_leave_nothing(root: Path) -> None:
    recorded = Recorded(root)
    stream = recorded.stream(Stream.PTY_INPUT)
    stream.feed(b"login ")
    for _ in range(5):
        stream.hide(1)
    stream.feed(b"and " + SECRET)
    stream.close("eof")
    record = recorded.seal()
    (hidden,) = record.of(Kind.INPUT_HIDDEN)
    assert (hidden.offset, meta_of(hidden)) == (6, {"bytes": 5})
    chunks = [(event.offset, event.body) for event in record.of(Kind.IO_CHUNK)]
    assert chunks == [(0, b"login "), (11, b"and " + b"*" * len(SECRET))]
    assert meta_of(record.of(Kind.IO_CHUNK)[1])["masked"] == [[15, 15 + len(SECRET)]]
    assert record.closed(Stream.PTY_INPUT) == (15 + len(SECRET), "eof")


def test_what_is_dropped_is_named_as_one_range_for_each_hole(root: Path) -> None:
    recorded = Recorded(root, policy="drop", limits=SpoolLimits(1 << 20, 1 << 18))
    content = random.Random(7).randbytes(5_000_000)
    stream = recorded.stream()
    assert recorded.recording.accepts()
    for position in range(0, 4_000_000, 50_000):
        stream.feed(content[position : position + 50_000])
        if position == 3_000_000:
            recorded.make_room()
            while not recorded.writer.room():
                recorded.recording.tick()
    stream.feed(content[4_000_000:])
    stream.close("eof")
    record = recorded.seal()
    dropped = record.of(Kind.TELEMETRY_DROPPED)
    assert len(dropped) == 2
    spans = [(event.offset, meta_of(event)["toOffset"]) for event in dropped]
    assert [meta_of(e)["bytes"] for e in dropped] == [end - start for start, end in spans]
    for event in record.of(Kind.IO_CHUNK):
        end = event.offset + len(event.body)
        assert event.body == content[event.offset : end]
        spans.append((event.offset, end))
    covered = 0
    for start, end in sorted(spans):
        assert start == covered
        covered = end
    assert covered == len(content)
    assert record.seal["streams"][0]["dropped"] == sum(meta_of(e)["bytes"] for e in dropped)


def test_with_the_policy_block_nothing_is_taken_until_there_is_room(root: Path) -> None:
    recorded = Recorded(root, limits=SpoolLimits(1 << 20, 1 << 18))
    stream = recorded.stream()
    content = random.Random(8).randbytes(2_000_000)
    position = 0
    while recorded.recording.accepts():
        stream.feed(content[position : position + 50_000])
        position += 50_000
    stream.feed(content[position:])
    stream.close("eof")
    assert recorded.recording.waiting()
    while recorded.recording.waiting():
        recorded.make_room()
        assert recorded.recording.deadline() is not None
        recorded.recording.accepts()
        recorded.recording.tick()
    record = recorded.seal()
    assert record.stream(Stream.STDOUT) == content
    assert record.closed(Stream.STDOUT) == (len(content), "eof")
    assert not record.of(Kind.TELEMETRY_DROPPED)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_makes_a_program_wait_but_not_for_ever(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = random.Random(9).randbytes(6_000_000)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(root)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no disk can be mounted here")
    try:
        recorded = Recorded(root)
        stream = recorded.stream()
        position = 0
        while recorded.recording.accepts():
            stream.feed(content[position : position + 50_000])
            position += 50_000
            recorded.recording.tick()
        assert recorded.writer.full_reason == "disk-full"
        monkeypatch.setattr(module, "_DISK_FULL_WAIT_SECONDS", 0.0)
        while not recorded.recording.accepts():
            recorded.recording.tick()
        stream.feed(content[position:])
        stream.close("eof")
        record = recorded.seal()
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)
    spans = [(event.offset, event.offset + len(event.body)) for event in record.of(Kind.IO_CHUNK)]
    for event in record.of(Kind.TELEMETRY_DROPPED):
        assert meta_of(event)["reason"] == "disk-full"
        spans.append((event.offset, meta_of(event)["toOffset"]))
    covered = 0
    for start, end in sorted(spans):
        assert start == covered
        covered = end
    assert covered == len(content) == record.closed(Stream.STDOUT)[0]


def test_observations_that_find_no_room_are_counted(root: Path) -> None:
    recorded = Recorded(root, limits=SpoolLimits(1 << 20, 1 << 18))
    change: dict[str, Any] = {"change": "added", "path": "x" * 1000, "root": "/"}
    while recorded.recording.event(Kind.FILE_CHANGE, change):
        pass
    for _ in range(9):
        recorded.recording.event(Kind.FILE_CHANGE, change)
    (dropped,) = recorded.seal().metas(Kind.TELEMETRY_DROPPED)
    assert dropped == {"count": 10, "what": "fileChange", "reason": "spool-full"}


def test_command_lines_keep_their_bytes_and_no_secret(root: Path) -> None:
    recorded = Recorded(root)
    recorded.recording.process_started(
        pid=7,
        argv=[b"\xff\xfe", b"--token=" + SECRET, "text"],
        cwd=b"/\xff",
        leader=False,
        parent=1,
        method=Method.POLL,
        confidence=Confidence.INFERRED,
    )
    started = recorded.seal().of(Kind.PROCESS_STARTED)[1]
    meta = meta_of(started)
    assert meta["argv"] == [
        {"text": "\N{REPLACEMENT CHARACTER}" * 2, "base64": "//4="},
        "--token=" + "*" * len(SECRET),
        "text",
    ]
    assert meta["cwd"]["base64"] == "L/8="
    assert (started.process, meta["parent"]) == (2, 1)
    assert (started.method, started.confidence) == (Method.POLL, Confidence.INFERRED)


def test_a_command_line_of_megabytes_is_cut_and_says_so(root: Path) -> None:
    recorded = Recorded(root)
    recorded.recording.process_started(
        pid=7, argv=["x", "y" * 2_000_000], cwd="/", leader=False, method=Method.POLL
    )
    meta = recorded.seal().metas(Kind.PROCESS_STARTED)[1]
    assert meta["argvTruncated"] is True
    assert sum(map(len, meta["argv"])) < 70_000


def test_what_follows_the_last_argument_that_fits_is_left_out_as_a_whole(root: Path) -> None:
    recorded = Recorded(root)
    recorded.recording.process_started(
        pid=7, argv=["y" * 65536, "z" * 100_000], cwd="/", leader=False, method=Method.POLL
    )
    meta = recorded.seal().metas(Kind.PROCESS_STARTED)[1]
    assert meta["argv"] == ["y" * 65536, ""]
    assert meta["argvTruncated"] is True


def test_a_stream_that_is_closed_twice_has_one_end(root: Path) -> None:
    recorded = Recorded(root)
    stream = recorded.stream()
    stream.feed(b"all")
    for _ in range(2):
        stream.close("eof")
    record = recorded.seal()
    assert record.closed(Stream.STDOUT) == (3, "eof")
    assert len(record.of(Kind.PROCESS_STREAM_CLOSED)) == 1


def test_all_streams_that_wait_for_room_go_on_at_once(root: Path) -> None:
    recorded = Recorded(root, limits=SpoolLimits(1 << 20, 1 << 18))
    streams = [recorded.stream(Stream.STDOUT), recorded.stream(Stream.STDERR)]
    while recorded.recording.accepts():
        streams[0].feed(b"x" * 50_000)
    for stream in streams:
        stream.feed(b"y" * 50_000)
        stream.close("eof")
    assert [stream.stuck for stream in streams] == [True, True]
    recorded.make_room()
    while not recorded.writer.room():
        pass
    assert recorded.recording.accepts()
    assert [stream.stuck for stream in streams] == [False, False]


def test_the_output_of_a_process_comes_before_its_end(root: Path) -> None:
    recorded = Recorded(root)
    recorded.stream().feed(b"last words")
    recorded.recording.process_exited(
        1, code=0, signal=None, reason="exited", duration_us=1, method=Method.PIPE
    )
    kinds = [event.kind for event in recorded.seal().events]
    assert kinds.index(Kind.IO_CHUNK) < kinds.index(Kind.PROCESS_EXITED)


def test_processes_go_on_being_numbered_where_an_earlier_life_ended(root: Path) -> None:
    writer = SpoolWriter.create(str(root), RUN_ID, SpoolLimits(), "boot")
    recording = Recording(writer, policy="block", masker=Masker([]), numbered=41)
    started = recording.process_started(pid=1, argv=["x"], cwd="/", leader=True, method=Method.PIPE)
    assert started == 42
    recording.seal("ended", None)
