"""Frames, segments, acknowledgements: what lies on the disk, one guard at a time."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs.agent.record import acks
from runs.agent.record import frames as framing
from runs.agent.record.follow import measure
from runs.agent.record.frames import Confidence, Event, FrameError, Kind, Method
from runs.agent.record.segments import (
    ACKED,
    READ_BYTES,
    Batch,
    Reader,
    Segment,
    SpoolDamaged,
    holds_a_frame,
    list_segments,
    open_folder,
    read_json,
    read_small,
    segment_name,
    size_of,
)
from tests.support.open_files import open_below


def event(sequence: int, body: bytes = b"x", *, kind: int = Kind.IO_CHUNK) -> Event:
    """Return an event with something in every member."""
    numbers = (sequence, 11, 12, kind, Method.PIPE, Confidence.OBSERVED, 13, 2, 14)
    return Event(*numbers, b'{"a":1}', body)


def frame(sequence: int, body: bytes = b"x", *, kind: int = Kind.IO_CHUNK) -> bytes:
    """Return its frame."""
    return framing.encode(event(sequence, body, kind=kind))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    """A spool folder without anything in it, open."""
    fd = open_folder(str(tmp_path))
    yield fd
    os.close(fd)


def write(tmp_path: Path, first: int, *parts: bytes) -> Path:
    """Write a segment."""
    path = tmp_path / segment_name(first)
    path.write_bytes(b"".join(parts))
    return path


def read_all(folder: int, first: int = 1) -> list[tuple[int, int, bool]]:
    """Read to the end; return first, last and whether it sealed, of each batch."""
    reader = Reader(folder, first)
    try:
        return [(batch.first, batch.last, batch.sealed) for batch in iter(reader.read, None)]
    finally:
        reader.close()


# ---------------------------------------------------------------- frames


def test_a_frame_holds_the_event_and_where_the_next_one_begins() -> None:
    whole = b"--" + frame(7, b"body") + b"rest"
    found = framing.next_frame(whole, 2)
    assert found is not None
    assert framing.decode(found[0]) == event(7, b"body")
    assert whole[found[1] :] == b"rest"


@pytest.mark.parametrize("cut", [0, 7, 8, 9, -1])
def test_a_frame_that_is_cut_off_is_none_yet(cut: int) -> None:
    assert framing.next_frame(frame(1)[:cut], 0) is None
    assert list(framing.frames(frame(1) + frame(2)[:cut])) == [framing.content_of(event(1))]


def test_an_empty_frame_is_a_keepalive() -> None:
    assert framing.next_frame(bytes(8), 0) == (b"", 8)


@pytest.mark.parametrize("place", range(4, len(frame(1))))
def test_a_frame_with_one_bit_changed_is_damage(place: int) -> None:
    damaged = bytearray(frame(1))
    damaged[place] ^= 1
    with pytest.raises(FrameError, match="the checksum does not fit"):
        framing.next_frame(bytes(damaged), 0)


def test_no_frame_is_longer_than_four_mib() -> None:
    assert framing.MAX_FRAME_BYTES == 4 * 1024 * 1024
    assert framing.next_frame(struct.pack("!II", framing.MAX_FRAME_BYTES, 0), 0) is None
    with pytest.raises(FrameError, match="a frame of 4194305 bytes"):
        framing.next_frame(struct.pack("!II", framing.MAX_FRAME_BYTES + 1, 0), 0)


def test_a_content_has_a_whole_header_and_a_whole_meta() -> None:
    content = framing.content_of(event(1, b""))
    assert framing.decode(content) == event(1, b"")
    assert framing.decode(content[: framing.HEADER.size - 4] + bytes(4)).meta == b""
    with pytest.raises(FrameError, match="shorter than a header"):
        framing.decode(content[: framing.HEADER.size - 1])
    with pytest.raises(FrameError, match="the meta is longer than the frame"):
        framing.decode(content[:-1])


def numbers(names: type) -> dict[str, int]:
    """Return what a class of numbers holds."""
    return {name: number for name, number in vars(names).items() if name.isupper()}


def test_the_numbers_that_records_are_stored_with_are_these_for_good() -> None:
    kinds = """
        RECORD_STARTED PROCESS_STARTED PROCESS_EXITED IO_CHUNK PROCESS_STREAM_CLOSED
        TERMINAL_RESIZED INPUT_HIDDEN TELEMETRY_DROPPED FILE_CHANGE FILE_WATCH_OVERFLOW
        FILE_SNAPSHOT_COMPLETED FILE_DIFF_AVAILABLE FILE_DIFF_ENTRY NETWORK_SOURCE_OBSERVED
        COVERAGE_CHANGED SIGNAL_SENT RUNTIME_STATE_CHANGED RECORD_SEALED FORWARD_OPENED
        FORWARD_CLOSED FILE_ACCESSED EGRESS_DECIDED
    """.split()  # noqa: SIM905 # one line each would be many
    assert numbers(Kind) == {name: number for number, name in enumerate(kinds, 1)}
    streams = ["NONE", "STDIN", "STDOUT", "STDERR", "PTY_INPUT", "PTY_OUTPUT"]
    assert numbers(framing.Stream) == {name: number for number, name in enumerate(streams)}
    methods = """
        UNSPECIFIED PIPE PTY PROXY INOTIFY SNAPSHOT EBPF NETLINK INTERNAL POLL
    """.split()  # noqa: SIM905 # one line each would be many
    assert numbers(Method) == {name: number for number, name in enumerate(methods)}
    sure = ["UNSPECIFIED", "OBSERVED", "INFERRED", "UNKNOWN"]
    assert numbers(Confidence) == {name: number for number, name in enumerate(sure)}


def test_every_kind_and_stream_is_named_as_its_number_is() -> None:
    def camel(name: str) -> str:
        first, *rest = name.lower().split("_")
        return first + "".join(map(str.capitalize, rest))

    kinds = {number: camel(name) for name, number in numbers(Kind).items()}
    assert kinds == framing.KIND_NAMES
    assert framing.STREAM_NAMES == {
        1: "stdin",
        2: "stdout",
        3: "stderr",
        4: "ptyInput",
        5: "pty",
    }


# ---------------------------------------------------------------- the folder


def test_segments_are_what_has_a_number_for_a_name_the_oldest_first(
    tmp_path: Path, folder: int
) -> None:
    assert segment_name(7) == "00000000000000000007.seg"
    for name in (segment_name(20), segment_name(3), "x.seg", ".seg", "9", "acked"):
        (tmp_path / name).touch()
    assert list_segments(folder) == [Segment(3, segment_name(3)), Segment(20, segment_name(20))]


def test_small_files_are_read_and_what_is_missing_or_torn_is_empty(
    tmp_path: Path, folder: int
) -> None:
    (tmp_path / "whole").write_text('{"a": 1}')
    (tmp_path / "torn").write_text('{"a": ')
    (tmp_path / "list").write_text("[1]")
    assert [read_json(folder, name) for name in ("whole", "torn", "list", "none")] == [
        {"a": 1},
        {},
        {},
        {},
    ]
    assert (read_small(folder, "none"), read_small(folder, "list")) == (b"", b"[1]")
    assert (size_of(folder, "list"), size_of(folder, "none")) == (3, 0)


def test_nothing_is_read_through_a_link(tmp_path: Path, folder: int) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / segment_name(1)).symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="Too many levels"):
        read_small(folder, "link")
    with pytest.raises(OSError, match="Too many levels"):
        Reader(folder, 1)
    (tmp_path / "other").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(OSError, match="Not a directory"):
        open_folder(str(tmp_path / "other"))


# ---------------------------------------------------------------- reading


def test_a_reader_begins_in_the_segment_that_holds_the_sequence(
    tmp_path: Path, folder: int
) -> None:
    write(tmp_path, 3, frame(3), frame(4))
    write(tmp_path, 5, frame(5), frame(6, kind=Kind.RECORD_SEALED))
    before = open_below(tmp_path)
    assert read_all(folder, 1) == [(3, 4, False), (5, 6, True)]
    assert read_all(folder, 4) == [(3, 4, False), (5, 6, True)]
    assert read_all(folder, 5) == read_all(folder, 99) == [(5, 6, True)]
    assert measure(folder) == (6, True)
    assert open_below(tmp_path) == before


def test_a_spool_without_a_segment_is_damaged(folder: int) -> None:
    with pytest.raises(SpoolDamaged, match=r"^the spool has no segment$"):
        Reader(folder, 1)


def test_a_torn_frame_is_the_end_until_it_is_whole(tmp_path: Path, folder: int) -> None:
    path = write(tmp_path, 1, frame(1), frame(2)[:-1])
    reader = Reader(folder, 1)
    batch = reader.read()
    assert batch == Batch(memoryview(frame(1)), 1, 1, False)
    assert reader.read() is None
    assert (reader.segment, reader.offset) == (segment_name(1), len(frame(1)))
    assert reader.place == f"segment {segment_name(1)}, byte {len(frame(1))}, sequence 2"
    assert reader.remainder() == frame(2)[:-1]
    path.write_bytes(frame(1) + frame(2))
    batch = reader.read()
    assert batch is not None
    assert (batch.first, batch.last, reader.remainder()) == (2, 2, b"")
    reader.close()
    reader.close()
    assert measure(folder) == (2, False)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (frame(3), "the frame has sequence 3"),
        (frame(1), "the frame has sequence 1"),
        (frame(2)[:-1] + b"y", "the checksum does not fit"),
        (struct.pack("!II", framing.HEADER.size - 1, 0) + bytes(60), "no frame begins here"),
        (struct.pack("!II", framing.MAX_FRAME_BYTES + 1, 0) + bytes(60), "no frame begins here"),
        (bytes(60), "no frame begins here"),
    ],
)
def test_damage_is_told_with_its_place_after_what_is_sound(
    tmp_path: Path, folder: int, second: bytes, message: str
) -> None:
    write(tmp_path, 1, frame(1), second)
    reader = Reader(folder, 1)
    batch = reader.read()
    assert batch is not None
    assert (batch.first, batch.last) == (1, 1)
    for _ in range(2):
        with pytest.raises(SpoolDamaged) as caught:
            reader.read()
        assert str(caught.value) == f"{message}: {reader.place}"
    reader.close()


def test_a_frame_longer_than_a_read_is_one_frame(tmp_path: Path, folder: int) -> None:
    body = bytes(framing.MAX_FRAME_BYTES - len(framing.content_of(event(2, b""))))
    assert len(frame(2, body)) == framing.MAX_FRAME_BYTES + 8 > READ_BYTES
    path = write(tmp_path, 1, frame(1), frame(2, body), frame(3))
    assert read_all(folder) == [(1, 1, False), (2, 2, False), (3, 3, False)]
    os.truncate(path, len(frame(1)) + READ_BYTES + 100)
    assert read_all(folder) == [(1, 1, False)]


def test_a_segment_ends_where_the_next_one_begins(tmp_path: Path, folder: int) -> None:
    path = write(tmp_path, 1, frame(1))
    write(tmp_path, 2, frame(2))
    assert read_all(folder) == [(1, 1, False), (2, 2, False)]
    path.write_bytes(frame(1) + b"x")
    with pytest.raises(SpoolDamaged, match=f"before segment {segment_name(2)}$"):
        read_all(folder)


def test_what_others_had_freed_meanwhile_is_passed_over(tmp_path: Path, folder: int) -> None:
    first = write(tmp_path, 1, frame(1))
    reader = Reader(folder, 1)
    assert reader.read() is not None
    write(tmp_path, 5, frame(5))
    assert reader.read() is None  # its segment is there, so nothing behind it was freed
    first.unlink()
    batch = reader.read()
    assert batch is not None
    assert (batch.first, batch.last, reader.next_sequence) == (5, 5, 6)
    (tmp_path / segment_name(5)).unlink()
    assert reader.read() is None
    reader.close()


# ---------------------------------------------------------------- damage or a torn end


def test_a_sound_frame_somewhere_behind_tells_damage_from_a_torn_end() -> None:
    assert holds_a_frame(b"x" + frame(5), 4)
    assert holds_a_frame(b"xyz" + frame(6) + b"more", 4)
    assert not holds_a_frame(b"x" + frame(5), 0)  # so few bytes cannot hold the four before it


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(1000),
        frame(5),
        b"x" + frame(4),
        b"x" + frame(3),
        b"x" + frame(8),
        b"x" + frame(5)[:-1],
        b"x" + frame(5)[:-1] + b"y",
        b"x" + struct.pack("!IIQ", 16, zlib.crc32(struct.pack("!QQ", 5, 0)), 5) + bytes(60),
    ],
)
def test_what_is_no_later_frame_tells_nothing(data: bytes) -> None:
    assert holds_a_frame(data, 4) is False


# ---------------------------------------------------------------- acknowledgements


def ack(sequence: int) -> bytes:
    """What is remembered of an acknowledgement."""
    number = struct.pack("!Q", sequence)
    return number + struct.pack("!I", zlib.crc32(number))


def test_an_acknowledgement_is_remembered_and_an_older_one_changes_nothing(
    tmp_path: Path, folder: int
) -> None:
    assert acks.read_acknowledged(folder) == 0
    assert acks.acknowledge(folder, 7) == 7
    assert (tmp_path / ACKED).read_bytes() == ack(7)
    assert acks.acknowledge(folder, 6) == 7
    assert acks.acknowledge(folder, 7) == 7
    assert acks.read_acknowledged(folder) == 7
    assert (tmp_path / ACKED).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", ack(7)[:-1], ack(7) + b"x", b"\1" + ack(7)[1:]])
def test_an_acknowledgement_that_was_not_written_to_its_end_is_none(
    tmp_path: Path, folder: int, content: bytes
) -> None:
    (tmp_path / ACKED).write_bytes(content)
    assert acks.read_acknowledged(folder) == 0


@pytest.mark.parametrize(
    ("acknowledged", "left"), [(0, [1, 3, 6]), (1, [1, 3, 6]), (2, [3, 6]), (5, [6]), (99, [6])]
)
def test_a_segment_is_freed_once_all_of_it_is_acknowledged_and_the_last_one_never(
    tmp_path: Path, folder: int, acknowledged: int, left: list[int]
) -> None:
    for first in (1, 3, 6):
        write(tmp_path, first, frame(first))
    acks.acknowledge(folder, acknowledged)
    assert [segment.first for segment in list_segments(folder)] == left


def test_a_run_whose_spool_was_removed_leaves_an_empty_folder(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    (root / "run").mkdir(parents=True)
    write(root / "run", 1, frame(1))
    acks.remove_spool(str(root), "run")
    acks.remove_spool(str(root), "run")
    assert not (root / "run").exists()
    assert list((root / ".done").iterdir()) == [root / ".done" / "run"]
    assert not any((root / ".done" / "run").iterdir())
    assert (root / ".done").stat().st_mode & 0o777 == 0o700


def test_a_removal_that_was_cut_off_is_finished(tmp_path: Path) -> None:
    acks.clear_removed(str(tmp_path))
    for name in ("a", "b"):
        (tmp_path / ".done" / name).mkdir(parents=True)
        write(tmp_path / ".done" / name, 1, frame(1))
    acks.clear_removed(str(tmp_path))
    assert sorted(path.name for path in (tmp_path / ".done").rglob("*")) == ["a", "b"]
