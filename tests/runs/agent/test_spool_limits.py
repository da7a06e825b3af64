"""How much a spool takes, when it writes, and what a failing disk leaves, one guard at a time."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runs.agent.record.frames import HEADER, PREFIX, Kind
from runs.agent.record.segments import RESERVE, open_folder, segment_name
from runs.agent.record.spool import (
    FLUSH_SECONDS,
    SYNC_BYTES,
    SYNC_SECONDS,
    SpoolBusy,
    SpoolExists,
    SpoolFailed,
    SpoolLimits,
    SpoolWriter,
)
from runs.agent.record.spool_files import Reserve, SegmentFiles
from tests.support.open_files import open_below
from tests.support.waiting import LONG_WAIT

RUN = "5d9ac2ae-2f4e-4c1b-9a74-2b1d6f0c7a55"
TOTAL = 1 << 16
ROOM = TOTAL - TOTAL // 8
"""What is left for I/O beside the reserve."""
EMPTY = PREFIX.size + HEADER.size


def create(tmp_path: Path, *, segment: int = 1 << 12, total: int = TOTAL) -> SpoolWriter:
    return SpoolWriter.create(str(tmp_path), RUN, SpoolLimits(total, segment), "one-shot")


def chunk(writer: SpoolWriter, size: int) -> bool:
    """Append a chunk whose frame has so many bytes."""
    return writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x" * (size - EMPTY))


def firsts(tmp_path: Path) -> list[int]:
    """Where the segments begin."""
    return sorted(int(path.stem) for path in (tmp_path / RUN).glob("*.seg"))


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Have the kernel refuse larger files, as a disk with an error of its own would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# ---------------------------------------------------------------- room


def test_chunks_are_taken_to_the_last_byte_that_there_is_room_for(tmp_path: Path) -> None:
    writer = create(tmp_path)
    for _ in range(14):
        assert chunk(writer, 4000)
    assert chunk(writer, ROOM - 14 * 4000)
    last = writer.last_sequence
    assert not chunk(writer, EMPTY)
    assert (writer.last_sequence, writer.full_reason, writer.room()) == (last, "spool-full", False)
    writer.close()


def test_one_byte_more_than_there_is_room_for_is_refused(tmp_path: Path) -> None:
    writer = create(tmp_path)
    for _ in range(14):
        assert chunk(writer, 4000)
    assert not chunk(writer, ROOM - 14 * 4000 + 1)
    assert chunk(writer, ROOM - 14 * 4000)
    writer.close()


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        (Kind.IO_CHUNK, False),
        (Kind.FILE_CHANGE, False),
        (Kind.FILE_DIFF_ENTRY, False),
        (Kind.NETWORK_SOURCE_OBSERVED, False),
        (Kind.PROCESS_EXITED, True),
        (Kind.TELEMETRY_DROPPED, True),
        (Kind.COVERAGE_CHANGED, True),
    ],
)
def test_of_a_full_spool_the_reserve_is_for_the_life_of_the_run(
    tmp_path: Path, kind: int, taken: bool
) -> None:
    writer = create(tmp_path)
    while chunk(writer, 4000):
        pass
    assert writer.append(kind, body=b"x" * 4000) is taken
    writer.close()


def test_what_is_too_large_for_the_spool_fits_alone(tmp_path: Path) -> None:
    writer = create(tmp_path)
    assert chunk(writer, 2 * TOTAL)
    writer.close()


@pytest.mark.parametrize(("segment", "bytes_of_one"), [(1 << 12, 1 << 12), (1 << 20, TOTAL // 4)])
def test_a_segment_ends_with_its_size_or_a_quarter_of_the_spool(
    tmp_path: Path, segment: int, bytes_of_one: int
) -> None:
    writer = create(tmp_path, segment=segment)
    assert chunk(writer, bytes_of_one - EMPTY - 1)
    writer.flush()
    assert firsts(tmp_path) == [1]
    assert chunk(writer, EMPTY)
    writer.flush()
    assert firsts(tmp_path) == [1]
    assert chunk(writer, EMPTY)
    writer.flush()
    assert firsts(tmp_path) == [1, 4]
    writer.close()


def test_a_batch_of_a_segment_is_written_at_once(tmp_path: Path) -> None:
    writer = create(tmp_path)
    assert chunk(writer, 4095 - EMPTY)
    assert (tmp_path / RUN / segment_name(1)).stat().st_size == 0
    assert chunk(writer, EMPTY + 1)
    assert (tmp_path / RUN / segment_name(1)).stat().st_size == 4096
    writer.close()


def test_the_reserve_is_an_eighth_of_the_spool_and_a_mebibyte_at_most(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    create(small).close()
    assert (small / RUN / RESERVE).stat().st_size == TOTAL // 8
    create(large, total=1 << 30).close()
    assert (large / RUN / RESERVE).stat().st_size == 1 << 20


# ---------------------------------------------------------------- time


def test_what_is_appended_is_due_soon_and_on_the_disk_a_little_later(tmp_path: Path) -> None:
    writer = create(tmp_path)
    assert writer.deadline() is None
    writer.tick()
    chunk(writer, 100)
    due = writer.deadline()
    assert due is not None
    assert due <= time.monotonic(), "the first one is written at once"
    before = time.monotonic()
    writer.flush()
    flushed = time.monotonic()
    chunk(writer, 100)
    due = writer.deadline()
    assert due is not None
    assert before + FLUSH_SECONDS <= due <= flushed + FLUSH_SECONDS
    chunk(writer, 100)
    assert writer.deadline() == due
    writer.flush()
    due = writer.deadline()
    assert due is not None
    assert before + SYNC_SECONDS <= due <= flushed + SYNC_SECONDS
    writer.sync()
    assert writer.deadline() is None
    writer.close()


def test_the_disk_is_asked_at_once_to_take_as_much_as_would_make_the_next_segment_wait(
    tmp_path: Path,
) -> None:
    writer = create(tmp_path, segment=2 * SYNC_BYTES, total=32 * SYNC_BYTES)
    began = time.monotonic()
    for _ in range(SYNC_BYTES // 32_768 - 1):
        chunk(writer, 32_768)
        writer.flush()
        due = writer.deadline()
        assert due is not None
        assert due >= began + SYNC_SECONDS
    chunk(writer, 32_768)
    writer.flush()
    due, before = writer.deadline(), time.monotonic()
    assert due is not None
    assert due <= before
    writer.tick()
    due = writer.deadline()
    assert due is not None
    assert due > before, "once is enough"
    writer.close()


def test_a_tick_writes_what_is_due_and_nothing_before(tmp_path: Path) -> None:
    writer = create(tmp_path)
    path = tmp_path / RUN / segment_name(1)
    chunk(writer, 100)
    due = writer.deadline()
    assert due is not None
    writer.tick()
    assert path.stat().st_size == 0 or time.monotonic() >= due
    deadline = time.monotonic() + LONG_WAIT
    while (due := writer.deadline()) is not None and time.monotonic() < deadline:
        time.sleep(max(0.0, due - time.monotonic()))
        writer.tick()
    assert (path.stat().st_size, writer.deadline()) == (100, None)
    writer.close()


# ---------------------------------------------------------------- the lock


def test_whoever_goes_on_with_a_spool_waits_for_its_writer_as_long_as_it_says(
    tmp_path: Path,
) -> None:
    writer = create(tmp_path)
    with pytest.raises(SpoolBusy):
        SpoolWriter.reopen(str(tmp_path), RUN, timeout=0)
    closing = threading.Timer(1.5, writer.close)
    closing.start()
    try:
        SpoolWriter.reopen(str(tmp_path), RUN, timeout=LONG_WAIT).close()
    finally:
        closing.join()


def test_a_closed_writer_takes_nothing_and_may_be_closed_again(tmp_path: Path) -> None:
    before = open_below(tmp_path)
    writer = create(tmp_path)
    chunk(writer, 100)
    writer.close()
    writer.close()
    assert open_below(tmp_path) == before
    with pytest.raises(SpoolFailed, match="the spool is sealed or closed"):
        chunk(writer, 100)


def test_a_run_that_has_a_spool_is_told_so_with_that_of_the_spool(tmp_path: Path) -> None:
    writer = create(tmp_path)
    with pytest.raises(SpoolExists, match=f"the run {RUN} has been recorded before") as caught:
        create(tmp_path)
    assert caught.value.spool_id == writer.spool_id
    writer.close()


# ---------------------------------------------------------------- a disk that fails


def test_a_spool_that_cannot_be_made_leaves_no_file_and_no_descriptor(tmp_path: Path) -> None:
    before = open_below(tmp_path)
    with (
        files_of_at_most(1000),
        pytest.raises(SpoolFailed, match="cannot be created: no room can be reserved"),
    ):
        create(tmp_path)
    assert open_below(tmp_path) == before
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(("limit", "whole"), [(250, 2), (299, 2), (300, 3), (99, 0)])
def test_of_a_write_that_fails_whole_frames_stay(tmp_path: Path, limit: int, whole: int) -> None:
    directory = open_folder(str(tmp_path))
    files = SegmentFiles(directory)
    files.begin(1)
    frames = [bytes([number]) * 100 for number in range(4)]
    with files_of_at_most(limit), pytest.raises(SpoolFailed, match="the spool cannot be written"):
        files.write(frames)
    assert (tmp_path / segment_name(1)).read_bytes() == b"".join(frames[:whole])
    assert files.size == 100 * whole
    assert files.write(frames[whole:]) == 4 - whole
    assert (tmp_path / segment_name(1)).read_bytes() == b"".join(frames)
    files.close()
    os.close(directory)


def test_what_follows_the_last_whole_frame_is_cut_when_a_segment_is_gone_on_with(
    tmp_path: Path,
) -> None:
    directory = open_folder(str(tmp_path))
    (tmp_path / segment_name(1)).write_bytes(b"a" * 30)
    (tmp_path / segment_name(9)).write_bytes(b"b" * 50)
    files = SegmentFiles(directory)
    assert files.resume(segment_name(9), 40) == 70
    assert (files.size, files.closed) == (40, 1)
    assert files.write([b"c" * 5]) == 1
    assert (tmp_path / segment_name(9)).read_bytes() == b"b" * 40 + b"c" * 5
    assert files.forget_freed() == 0
    (tmp_path / segment_name(1)).unlink()
    assert (files.forget_freed(), files.closed, files.forget_freed()) == (30, 0, 0)
    files.close()
    os.close(directory)


def test_a_reserve_is_kept_once_and_given_up_once(tmp_path: Path) -> None:
    directory = open_folder(str(tmp_path))
    reserve = Reserve(directory, 1000)
    assert reserve.take()
    assert reserve.take()
    assert (tmp_path / RESERVE).stat().st_size == 1000
    assert (tmp_path / RESERVE).stat().st_mode & 0o777 == 0o600
    assert (reserve.release(), reserve.release()) == (True, False)
    with files_of_at_most(999), pytest.raises(SpoolFailed, match="no room can be reserved"):
        reserve.take()
    assert not (tmp_path / RESERVE).exists()
    assert Reserve(directory, 0).take()
    os.close(directory)


def test_files_that_are_closed_twice_close_nothing_of_others(tmp_path: Path) -> None:
    directory = open_folder(str(tmp_path))
    files = SegmentFiles(directory)
    files.begin(1)
    files.close()
    others = [os.open(tmp_path / segment_name(1), os.O_RDONLY) for _ in range(3)]
    files.close()
    for descriptor in (directory, *others):
        os.fstat(descriptor)
        os.close(descriptor)
