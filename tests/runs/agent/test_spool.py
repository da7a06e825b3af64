"""The writer of a spool: borders of segments, outages, and a disk that is really full."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from runs.agent.record.acks import acknowledge, read_acknowledged
from runs.agent.record.frames import Event, Kind, decode, frames
from runs.agent.record.repair import seal_abandoned
from runs.agent.record.segments import Reader, SpoolDamaged, list_segments, open_folder
from runs.agent.record.spool import SpoolFailed, SpoolLimits, SpoolWriter
from runs.agent.record.spool_check import check
from runs.agent.record.spool_sync import BackgroundSync
from tests.runs.agent.booted import eventually
from tests.runs.recording.scripted_agent import framed
from tests.stack.disks import fill

RUN = "5d9ac2ae-2f4e-4c1b-9a74-2b1d6f0c7a55"
SMALL = SpoolLimits(1 << 16, 1 << 12)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


class Folder:
    """The spool as somebody else than its writer sees it."""

    def __init__(self, root: Path) -> None:
        self.path = root / RUN

    def firsts(self) -> list[int]:
        """Where the segments begin."""
        return sorted(int(path.stem) for path in self.path.glob("*.seg"))

    def acknowledge(self, sequence: int) -> None:
        """Say that everything up to there is committed."""
        directory = open_folder(str(self.path))
        try:
            acknowledge(directory, sequence)
        finally:
            os.close(directory)

    def acknowledged(self) -> int:
        """What is remembered of that."""
        directory = open_folder(str(self.path))
        try:
            return read_acknowledged(directory)
        finally:
            os.close(directory)

    def events(self) -> list[Event]:
        """Everything that can be read."""
        directory = open_folder(str(self.path))
        reader = Reader(directory, 1)
        found = []
        try:
            while (batch := reader.read()) is not None:
                found += [decode(content) for content in frames(bytes(batch.data))]
        finally:
            reader.close()
            os.close(directory)
        return found

    def lose(self, events: int) -> None:
        """Take events from the end of the last segment, as an outage does before a sync."""
        last = max(self.path.glob("*.seg"))
        contents = list(frames(last.read_bytes()))
        os.truncate(last, sum(8 + len(content) for content in contents[: len(contents) - events]))

    def check(self) -> str:
        """What the offline check says."""
        directory = open_folder(str(self.path))
        try:
            return check(directory)
        finally:
            os.close(directory)


def three_segments(root: Path) -> SpoolWriter:
    writer = SpoolWriter.create(str(root), RUN, SMALL, "one-shot")
    for _ in range(3):
        for _ in range(10):
            writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x" * 450)
        writer.flush()
    return writer


def test_a_segment_is_freed_by_the_acknowledgement_of_its_last_event_and_not_before(
    root: Path,
) -> None:
    writer = three_segments(root)
    folder = Folder(root)
    before = folder.firsts()
    assert len(before) >= 3
    second, third = before[1], before[2]
    folder.acknowledge(second - 2)
    assert folder.firsts() == before
    folder.acknowledge(second - 1)
    assert folder.firsts() == before[1:]
    folder.acknowledge(third - 2)
    assert folder.firsts() == before[1:]
    folder.acknowledge(third - 1)
    assert folder.firsts() == before[2:]
    writer.close()


def test_the_last_segment_stays_and_an_older_acknowledgement_changes_nothing(root: Path) -> None:
    writer = three_segments(root)
    folder = Folder(root)
    last = folder.firsts()[-1]
    folder.acknowledge(writer.last_sequence)
    folder.acknowledge(1)
    assert folder.firsts() == [last]
    assert folder.acknowledged() == writer.last_sequence
    writer.close()


def test_a_reader_passes_over_what_others_had_freed_before_it_came_there(root: Path) -> None:
    writer = three_segments(root)
    folder = Folder(root)
    first, *_, last = folder.firsts()
    directory = open_folder(str(folder.path))
    reader = Reader(directory, first)
    folder.acknowledge(last - 1)
    found = []
    while (batch := reader.read()) is not None:
        found.append((batch.first, batch.last))
    assert [each[0] for each in found] == [first, last]
    assert found[0][1] < last - 1
    assert found[1][1] == writer.last_sequence
    reader.close()
    os.close(directory)
    writer.close()


@pytest.mark.parametrize("lost", ["a frame", "a part of a frame", "all but the first bytes"])
def test_a_reader_does_not_pass_over_the_lost_end_of_a_segment_that_others_follow(
    root: Path, lost: str
) -> None:
    three_segments(root).close()
    folder = Folder(root)
    first, second, *_ = folder.firsts()
    middle = folder.path / f"{second:020d}.seg"
    *_, last = (8 + len(content) for content in frames(middle.read_bytes()))
    size = middle.stat().st_size
    os.truncate(
        middle,
        {"a frame": size - last, "a part of a frame": size - 5}.get(lost, 3),
    )

    with pytest.raises(SpoolDamaged, match=f"more follows: segment {second:020d}"):
        folder.check()
    read = [event.sequence for event in folder.events()]
    assert read == list(range(first, first + len(read)))
    assert second - 1 <= read[-1] < folder.firsts()[2] - 1


def test_bytes_behind_the_last_frame_of_a_segment_that_others_follow_are_damage(
    root: Path,
) -> None:
    three_segments(root).close()
    folder = Folder(root)
    second, third = folder.firsts()[1:3]
    with (folder.path / f"{second:020d}.seg").open("ab") as file:
        file.write(b"\0\0\0\x39torn")

    with pytest.raises(SpoolDamaged, match=f"before segment {third:020d}"):
        folder.check()


@pytest.mark.parametrize("last", [False, True], ids=["in the middle", "the last one"])
def test_a_jump_inside_a_segment_is_damage_and_not_passed_over(root: Path, last: bool) -> None:
    writer = three_segments(root)
    for _ in range(3):
        writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x")
    writer.close()
    folder = Folder(root)
    first = folder.firsts()[-1 if last else 1]
    segment = folder.path / f"{first:020d}.seg"
    one, _, *rest = frames(segment.read_bytes())
    segment.write_bytes(b"".join(map(framed, [one, *rest])))

    with pytest.raises(SpoolDamaged, match=f"sequence {first + 1}$"):
        folder.check()
    with pytest.raises(SpoolDamaged, match=f"the frame has sequence {first + 2}"):
        folder.events()
    if last:
        with pytest.raises(SpoolFailed, match="is damaged"):
            SpoolWriter.reopen(str(root), RUN)


def test_a_sequence_that_was_acknowledged_is_never_given_out_again(root: Path) -> None:
    writer = SpoolWriter.create(str(root), RUN, SMALL, "boot")
    writer.append(Kind.PROCESS_STARTED, process=1, meta=b'{"leader":true}')
    for _ in range(9):
        writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x")
    writer.close()
    folder = Folder(root)
    folder.acknowledge(8)
    folder.lose(5)
    assert folder.events()[-1].sequence == 5

    writer = SpoolWriter.reopen(str(root), RUN)
    # Each of the three that are gone here may have started a process.
    assert writer.summary.processes == 4
    writer.append(Kind.IO_CHUNK, process=5, stream=2, body=b"after")
    writer.close()
    told = folder.events()
    assert [event.sequence for event in told] == [9, 10, 11]
    assert [event.kind for event in told[:2]] == [Kind.COVERAGE_CHANGED] * 2
    off, on = (json.loads(event.meta) for event in told[:2])
    assert (off["source"], off["state"], on["source"], on["state"]) == ("io", "off", "io", "on")
    assert off["reason"].startswith("the disk lost what was written last")
    assert [(event.process, event.stream, event.offset) for event in told[:2]] == [(0, 0, 0)] * 2
    assert folder.check().endswith("open, sound up to sequence 11")

    writer = SpoolWriter.reopen(str(root), RUN)
    assert writer.last_sequence == 11
    assert writer.summary.processes == 4
    writer.close()


def test_an_outage_that_took_nothing_acknowledged_leaves_a_dense_sequence(root: Path) -> None:
    writer = SpoolWriter.create(str(root), RUN, SMALL, "boot")
    for _ in range(10):
        writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x")
    writer.close()
    folder = Folder(root)
    folder.acknowledge(5)
    folder.lose(5)
    writer = SpoolWriter.reopen(str(root), RUN)
    assert writer.last_sequence == 5
    assert writer.append(Kind.SIGNAL_SENT)
    writer.close()
    assert [event.sequence for event in folder.events()] == [1, 2, 3, 4, 5, 6]


def test_an_abandoned_record_is_sealed_behind_what_was_acknowledged(root: Path) -> None:
    writer = SpoolWriter.create(str(root), RUN, SMALL, "one-shot")
    for _ in range(10):
        writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x")
    writer.close()
    folder = Folder(root)
    folder.acknowledge(10)
    folder.lose(10)
    assert seal_abandoned(str(root)) == [RUN]
    last = folder.events()[-1]
    assert (last.sequence, last.kind) == (13, Kind.RECORD_SEALED)
    assert json.loads(last.meta)["events"] == 13


def test_a_life_that_ended_while_it_went_past_lost_events_is_gone_on_from(root: Path) -> None:
    writer = SpoolWriter.create(str(root), RUN, SMALL, "boot")
    for _ in range(10):
        writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x")
    writer.close()
    folder = Folder(root)
    folder.acknowledge(10)
    folder.lose(3)
    (folder.path / f"{11:020d}.seg").touch()
    assert "sound up to sequence 10" in folder.check()
    writer = SpoolWriter.reopen(str(root), RUN)
    assert writer.last_sequence == 10
    assert folder.firsts() == [11]
    writer.close()


def test_a_full_disk_refuses_output_and_takes_the_end_of_the_record_and_goes_on_with_room(
    small_disk: Path,
) -> None:
    root = small_disk / "runs"
    writer = SpoolWriter.create(str(root), RUN, SpoolLimits(1 << 26, 1 << 18), "one-shot")
    other = small_disk / "other"
    other.write_bytes(b"x" * 500_000)
    content = random.Random(3).randbytes(40_000)
    accepted: list[int] = []
    refused: list[int] = []
    for number in range(200):
        fits = writer.append(Kind.IO_CHUNK, process=1, stream=2, offset=number, body=content)
        (accepted if fits else refused).append(number)
        writer.tick()
        writer.flush()
    assert accepted
    assert refused
    assert writer.full_reason == "disk-full"
    assert not writer.room()

    # Lifecycle events are taken all the same, however many wait for the disk.
    for _ in range(100):
        assert writer.append(Kind.SIGNAL_SENT, body=b"y" * 100)
    writer.flush()

    other.unlink()
    refused_before = len(refused)
    while not writer.room():
        writer.tick()
    for number in range(200, 204):
        fits = writer.append(Kind.IO_CHUNK, process=1, stream=2, offset=number, body=content)
        (accepted if fits else refused).append(number)
    assert accepted[-1] >= 200

    for number in range(204, 400):
        fits = writer.append(Kind.IO_CHUNK, process=1, stream=2, offset=number, body=content)
        (accepted if fits else refused).append(number)
        writer.flush()
    assert len(refused) > refused_before
    meta = json.dumps({"count": len(refused), "what": "ioChunk", "reason": "disk-full"})
    assert writer.append(Kind.TELEMETRY_DROPPED, meta=meta.encode())
    writer.seal({"by": "agent", "reason": "ended", "exit": None})

    events = Folder(root).events()
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    chunks = [event for event in events if event.kind == Kind.IO_CHUNK]
    assert [event.offset for event in chunks] == accepted
    assert all(event.body == content for event in chunks)
    assert sorted(accepted + refused) == list(range(400))
    assert sum(event.kind == Kind.SIGNAL_SENT for event in events) == 100
    assert [event.kind for event in events[-2:]] == [Kind.TELEMETRY_DROPPED, Kind.RECORD_SEALED]


def test_an_end_that_the_disk_has_no_room_for_leaves_the_spool_unsealed(small_disk: Path) -> None:
    root = small_disk / "runs"
    writer = SpoolWriter.create(str(root), RUN, SMALL, "one-shot")
    assert writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"stored")
    writer.sync()
    ballast = fill(small_disk)
    # More than the room that was reserved takes, of what is never refused.
    for _ in range(20):
        assert writer.append(Kind.SIGNAL_SENT, body=random.Random(3).randbytes(1000))

    with pytest.raises(SpoolFailed, match="no room for the end"):
        writer.seal({"by": "agent", "reason": "ended", "exit": None})

    assert not writer.sealed
    stored = Folder(root).events()
    assert stored[0].body == b"stored"
    assert stored[-1].kind == Kind.SIGNAL_SENT
    assert len(stored) < 21
    ballast.unlink()
    assert seal_abandoned(str(root)) == [RUN]
    last = Folder(root).events()[-1]
    assert (last.kind, last.sequence) == (Kind.RECORD_SEALED, len(stored) + 1)
    assert json.loads(last.meta)["reason"] == "recorder-lost"


def test_a_run_that_a_full_disk_cannot_record_leaves_nothing_behind(small_disk: Path) -> None:
    (small_disk / "other").write_bytes(b"x" * 2_900_000)
    root = small_disk / "runs"
    with pytest.raises(SpoolFailed, match="No space left"):
        SpoolWriter.create(str(root), RUN, SpoolLimits(), "one-shot")
    assert [path.name for path in root.iterdir()] == [".done"]


def test_what_killed_recorders_kept_to_compare_with_goes_at_the_next_boot(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    writer = SpoolWriter.create(str(root), RUN, SMALL, "one-shot")
    living, dead = tmp_path / f"snapshot-{RUN}-ab_c", tmp_path / f"snapshot-{RUN[::-1]}-abc"
    for folder in (living, dead):
        (folder / "work").mkdir(parents=True)
        (folder / "work" / "index").touch()
    seal_abandoned(str(root))
    assert living.exists()
    assert not dead.exists()
    writer.close()
    seal_abandoned(str(root))
    assert not living.exists()
    assert root.exists()


def test_room_returns_when_all_was_acknowledged_before_the_last_segment_could_go(
    root: Path,
) -> None:
    writer = SpoolWriter.create(str(root), RUN, SpoolLimits(4096, 256), "one-shot")
    while writer.append(Kind.IO_CHUNK, body=b"x" * 50):
        writer.flush()
    assert not writer.room()
    Folder(root).acknowledge(writer.last_sequence)
    for _ in range(1_000_000):
        if writer.room():
            break
    assert writer.room()
    directory = open_folder(str(root / RUN))
    assert len(list_segments(directory)) == 1
    os.close(directory)
    writer.close()


def turn(writer: SpoolWriter) -> bool:
    """Do what a loop does: wait until something is due, and do it; whether there was anything."""
    due = writer.deadline()
    if due is None:
        return False
    time.sleep(max(0.0, due - time.monotonic()))
    writer.tick()
    return True


def break_disk_of(root: Path) -> None:
    """Put a pipe in place of the writer's segment: it takes bytes and never makes them durable."""
    (segment,) = (
        link
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink()
        and f"{root}/{RUN}" in str(link.readlink())
        and ".seg" in str(link.readlink())
    )
    reading, writing = os.pipe()
    os.dup2(writing, int(segment.name))
    os.close(reading)
    os.close(writing)


class TestWaitingForTheDisk:
    def test_a_loop_has_it_done_and_looks_whether_it_was(self, root: Path) -> None:
        writer = SpoolWriter.create(str(root), RUN, SMALL, "one-shot")
        writer.append(Kind.IO_CHUNK, body=b"one")
        turns = 0
        while turn(writer):
            turns += 1
        assert turns >= 3  # written, handed to the disk, taken by the disk
        assert [event.body for event in Folder(root).events()] == [b"one"]
        writer.close()

    def test_a_loop_learns_that_the_disk_failed(self, root: Path) -> None:
        writer = SpoolWriter.create(str(root), RUN, SMALL, "one-shot")
        writer.append(Kind.IO_CHUNK, body=b"one")
        writer.flush()
        break_disk_of(root)
        assert turn(writer)  # does not wait for the disk, so it cannot know yet
        with pytest.raises(SpoolFailed, match="cannot be made durable"):
            all(iter(lambda: turn(writer), False))
        with suppress(SpoolFailed):
            writer.close()

    @pytest.mark.parametrize("asks", [SpoolWriter.sync, SpoolWriter.close])
    def test_whoever_waits_for_the_disk_learns_it_too(
        self, root: Path, asks: Callable[[SpoolWriter], None]
    ) -> None:
        writer = SpoolWriter.create(str(root), RUN, SMALL, "one-shot")
        writer.append(Kind.IO_CHUNK, body=b"one")
        writer.flush()
        break_disk_of(root)
        assert turn(writer)
        with pytest.raises(SpoolFailed, match="cannot be made durable"):
            asks(writer)
        with suppress(SpoolFailed):
            writer.close()

    def test_a_failure_that_nobody_has_asked_for_is_not_forgotten(self, tmp_path: Path) -> None:
        reading, writing = os.pipe()
        file = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
        sync = BackgroundSync()
        sync.begin(writing)
        eventually(lambda: not sync.running)
        sync.begin(file)
        with pytest.raises(OSError, match="Invalid argument"):
            sync.end()
        sync.end()
        for fd in (reading, writing, file):
            os.close(fd)

    def test_where_no_thread_can_be_started_it_is_done_at_once(self, tmp_path: Path) -> None:
        script = (
            "import os, resource, sys\n"
            "from runs.agent.record.spool_sync import BackgroundSync\n"
            "os.setresuid(12345, 12345, 12345)\n"
            "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n"
            "reading, writing = os.pipe()\n"
            "sync = BackgroundSync()\n"
            "sync.begin(writing)\n"
            "assert not sync.running\n"
            "try:\n"
            "    sync.end()\n"
            "except OSError as error:\n"
            "    print(error.strerror)\n"
        )
        if os.geteuid() != 0:
            pytest.skip("only root can become somebody who may not start threads")
        told = subprocess.run(
            [sys.executable, "-c", script],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (told.stdout, told.stderr) == ("Invalid argument\n", "")
