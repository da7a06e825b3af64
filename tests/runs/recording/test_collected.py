"""Spools are read out of containers that have ended, whatever a workspace has made of them."""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import tarfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runs.agent.record.frames import Kind
from runs.agent.record.spool import SpoolLimits, SpoolWriter
from runs.models import Run, RunEvent, RunLoss
from runs.record import store
from runs.record.verify import verify_run
from runs.recording import collect as collect
from runs.recording.collect import RUNS_DIRECTORY, drain
from tests.factories import make_job
from tests.runs.record_factory import make_run
from workspaces.runtimes.base import FileReader, LaunchError

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run() -> Run:
    """A boot run that goes on."""
    job = make_job()
    Run.objects.filter(pk=job.attempt.run_id).update(status=Run.Status.RUNNING)
    return Run.objects.get(pk=job.attempt.run_id)


def spool_of(root: Path, run: Run, **limits: int) -> SpoolWriter:
    """The spool of a run, with the first event in it."""
    writer = SpoolWriter.create(str(root), str(run.pk), SpoolLimits(**limits), run.mode)
    writer.append(Kind.RECORD_STARTED, meta=b'{"version":1}')
    return writer


def say(writer: SpoolWriter, count: int, size: int = 1000) -> None:
    """Append output of process 1."""
    for number in range(count):
        writer.append(Kind.IO_CHUNK, process=1, stream=2, offset=number * size, body=b"x" * size)
        writer.flush()


def in_order(paths: list[Path]) -> list[Path]:
    """The files of a folder as one engine walks through it."""
    return sorted(paths)


def backwards(paths: list[Path]) -> list[Path]:
    """The files of a folder as a disk of memory lists it."""
    return sorted(paths, reverse=True)


def shuffled(paths: list[Path]) -> list[Path]:
    """The files of a folder as a disk lists it that keeps their names by a hash."""
    return random.Random(5).sample(sorted(paths), len(paths))


def reader(
    root: Path, order: Callable[[list[Path]], list[Path]] = in_order, asked: list[str] | None = None
) -> FileReader:
    """Reads from a folder as the engine reads from a container: a tar, in any chunks."""

    @contextlib.contextmanager
    def read(path: str) -> Iterator[Iterator[bytes] | None]:
        place = root / path.removeprefix(RUNS_DIRECTORY).lstrip("/")
        if not place.exists():
            yield None
            return
        if asked is not None:
            asked.append(place.name)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(place, arcname=place.name, recursive=False)
            for file in order(list(place.iterdir())) if place.is_dir() else ():
                archive.add(file, arcname=f"{place.name}/{file.name}")
        yield chunked(buffer.getvalue())

    return read


def chunked(data: bytes, size: int = 700) -> Iterator[bytes]:
    """The bytes in pieces that fit nothing."""
    return (data[start : start + size] for start in range(0, len(data), size))


def stored(run: Run) -> list[int]:
    """The sequences that are stored."""
    rows = RunEvent.objects.filter(run_number=run.number).order_by("sequence")
    return list(rows.values_list("sequence", flat=True))


def losses(run: Run) -> list[str]:
    """The reasons of the record's loss spans."""
    return list(RunLoss.objects.filter(run_number=run.number).values_list("kind", flat=True))


@pytest.mark.parametrize("order", [in_order, backwards, shuffled])
def test_a_sealed_spool_of_many_segments_is_stored_and_settles_its_run(
    tmp_path: Path, run: Run, order: Callable[[list[Path]], list[Path]]
) -> None:
    writer = spool_of(tmp_path, run, segment_bytes=10_000)
    say(writer, 100)
    writer.seal({"by": "agent", "reason": "stopped", "exit": None})
    segments = sorted(path.name for path in (tmp_path / str(run.pk)).glob("*.seg"))
    assert len(segments) > 5
    asked: list[str] = []

    drain(reader(tmp_path, order, asked), run.pk)

    run.refresh_from_db()
    assert stored(run) == list(range(1, 103))
    assert run.status == "completed"
    assert losses(run) == []
    assert verify_run(run).ok
    again = asked[2:]
    assert again == sorted(again)
    assert order is not in_order or not again, "what comes in its turn is read once"
    assert order is not backwards or again == segments[1:]


def test_what_is_stored_already_is_not_stored_again(tmp_path: Path, run: Run) -> None:
    writer = spool_of(tmp_path, run)
    say(writer, 10)
    for _ in range(2):
        drain(reader(tmp_path), run.pk)
    say(writer, 5)
    drain(reader(tmp_path), run.pk)
    assert stored(run) == list(range(1, 17))
    assert run.status == "running"
    writer.close()


def test_a_torn_end_is_left_out(tmp_path: Path, run: Run) -> None:
    writer = spool_of(tmp_path, run)
    say(writer, 10)
    writer.close()
    [segment] = (tmp_path / str(run.pk)).glob("*.seg")
    segment.write_bytes(segment.read_bytes()[:-300])
    drain(reader(tmp_path), run.pk)
    assert stored(run) == list(range(1, 11))


def test_damage_in_the_middle_is_a_gap_with_a_name(tmp_path: Path, run: Run) -> None:
    writer = spool_of(tmp_path, run, segment_bytes=5_000)
    say(writer, 30)
    writer.close()
    second = sorted((tmp_path / str(run.pk)).glob("*.seg"))[1]
    data = bytearray(second.read_bytes())
    data[100] ^= 1
    second.write_bytes(data)
    drain(reader(tmp_path), run.pk)
    assert stored(run)[-1] == 31
    assert len(stored(run)) < 31
    assert "sequence_gap" in losses(run)


def test_a_container_without_spools_leaves_everything_as_it_is(tmp_path: Path, run: Run) -> None:
    drain(reader(tmp_path), run.pk)
    assert stored(run) == []


def test_runs_of_other_workspaces_are_not_written_to(tmp_path: Path, run: Run) -> None:
    stranger = make_run()
    writer = spool_of(tmp_path, stranger)
    writer.seal({"by": "agent", "reason": "ended", "exit": None})
    drain(reader(tmp_path), run.pk)
    assert stored(stranger) == []


@pytest.mark.parametrize(
    "identity",
    [b"", b"[]", b"{", b'{"spoolId": 7}', b'{"spoolId": "control-plane"}', b"[" * 70_000],
)
def test_an_identity_that_makes_no_sense_is_no_spool(
    tmp_path: Path, run: Run, identity: bytes
) -> None:
    spool_of(tmp_path, run).close()
    (tmp_path / str(run.pk) / "spool.json").write_bytes(identity)
    drain(reader(tmp_path), run.pk)
    assert stored(run) == []


def test_links_and_strange_names_are_passed_over(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / str(run.pk)
    spool_of(tmp_path, run).close()
    (folder / f"{'9' * 20}.seg").symlink_to("/etc/passwd")
    (folder / "..seg").write_bytes(b"x" * 1000)
    (folder / f"{'8' * 20}.seg").mkdir()
    drain(reader(tmp_path), run.pk)
    assert stored(run) == [1]


def test_a_source_that_sends_no_events_has_its_record_ended(tmp_path: Path, run: Run) -> None:
    writer = spool_of(tmp_path, run)
    writer.last_sequence = 2**64 - 2
    writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x")
    writer.close()
    drain(reader(tmp_path), run.pk)
    run.refresh_from_db()
    assert run.status == "failed"
    assert verify_run(run).ok


def test_a_spool_that_another_has_followed_is_left(tmp_path: Path, run: Run) -> None:
    spool_of(tmp_path, run).close()
    drain(reader(tmp_path), run.pk)
    store.open_source(run.number, str(uuid.uuid4()))
    drain(reader(tmp_path), run.pk)
    assert stored(run) == [1]


def test_no_more_is_read_than_a_spool_can_hold(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MAX_SPOOL_BYTES", 20_000)
    monkeypatch.setattr(collect, "READ_BYTES", 1000)
    writer = spool_of(tmp_path, run)
    say(writer, 100)
    writer.close()
    drain(reader(tmp_path), run.pk)
    assert 10 < len(stored(run)) < 25


@dataclass
class Clock:
    """Time as a test has it pass."""

    now: float = 1000.0

    def monotonic(self) -> float:
        """Return the seconds that a drain goes by."""
        return self.now


def test_an_endless_file_beside_the_segments_ends_the_drain_in_its_time(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(collect, "time", clock)
    writer = spool_of(tmp_path, run)
    say(writer, 10)
    writer.close()
    whole = reader(tmp_path)
    served = 0

    @contextlib.contextmanager
    def endless(path: str) -> Iterator[Iterator[bytes] | None]:
        with whole(path) as chunks:
            assert chunks is not None
            data = b"".join(chunks)
            if path.endswith("spool.json"):
                yield chunked(data)
            else:
                files = data.rstrip(b"\0")
                files += bytes(-len(files) % tarfile.BLOCKSIZE)
                yield itertools.chain(chunked(files), forever())

    def forever() -> Iterator[bytes]:
        nonlocal served
        member = tarfile.TarInfo(f"{run.pk}/{'0' * 19}.more")
        member.size = 2**60
        yield member.tobuf()
        while True:
            served += 1
            clock.now += 0.1
            yield bytes(256 * 1024)

    drain(endless, run.pk, seconds=0.55)

    assert stored(run) == list(range(1, 12))
    assert served == 6, "nothing is read once the time is over"


@pytest.mark.parametrize("told", [False, True], ids=["silently", "with an error"])
def test_an_archive_that_is_cut_off_gives_what_it_held(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    monkeypatch.setattr(collect, "READ_BYTES", 1000)
    writer = spool_of(tmp_path, run)
    say(writer, 50)
    writer.close()
    whole = reader(tmp_path)

    @contextlib.contextmanager
    def cut(path: str) -> Iterator[Iterator[bytes] | None]:
        with whole(path) as chunks:
            assert chunks is not None
            data = b"".join(chunks)
            yield chunked(data) if path.endswith("spool.json") else beginning(data)

    def beginning(data: bytes) -> Iterator[bytes]:
        yield from chunked(data[:30_000])
        if told:
            raise LaunchError("adapter-unavailable", "It was cut.")

    with pytest.raises(LaunchError) if told else contextlib.nullcontext():
        drain(cut, run.pk)
    assert 10 < len(stored(run)) < 51


def test_an_archive_that_is_cut_off_in_whose_spool_it_is_keeps_no_other_run_from_being_stored(
    tmp_path: Path, run: Run
) -> None:
    assert run.attempt is not None
    other = make_run(attempt=run.attempt, workspace=run.workspace)
    for each in (run, other):
        spool_of(tmp_path, each).close()
    identity = tmp_path / str(run.pk) / collect.IDENTITY_NAME
    identity.write_bytes(identity.read_bytes() + b" " * 10_000)
    whole = reader(tmp_path)

    @contextlib.contextmanager
    def cut(path: str) -> Iterator[Iterator[bytes] | None]:
        with whole(path) as chunks:
            assert chunks is not None
            data = b"".join(chunks)
            is_cut = path.endswith(f"{run.pk}/{collect.IDENTITY_NAME}")
            yield chunked(data[:5000] if is_cut else data)

    drain(cut, run.pk)
    assert (stored(run), stored(other)) == ([], [1])


def test_a_drain_that_is_out_of_time_stops(tmp_path: Path, run: Run) -> None:
    spool_of(tmp_path, run).close()
    drain(reader(tmp_path), run.pk, seconds=-1)
    assert stored(run) == []
