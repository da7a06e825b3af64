"""The end of a spool is written once: whenever its writer is killed, or whoever repairs it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runs.agent.record import repair
from runs.agent.record.follow import measure
from runs.agent.record.frames import HEADER, PREFIX, Kind, decode, frames
from runs.agent.record.segments import Reader, open_folder, segment_name
from runs.agent.record.spool import SpoolLimits, SpoolWriter

RUN = "5d9ac2ae-2f4e-4c1b-9a74-2b1d6f0c7a55"
SEGMENT = 1 << 12
EMPTY = PREFIX.size + HEADER.size
CHANGING = ("open", "write", "fsync", "fdatasync", "ftruncate", "replace", "rename", "unlink")


def write(root: Path, filled: int) -> None:
    """Write a record whose last segment holds so many bytes when its end comes."""
    writer = SpoolWriter.create(str(root), RUN, SpoolLimits(1 << 16, SEGMENT), "one-shot")
    writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x" * SEGMENT)
    writer.flush()
    writer.append(Kind.IO_CHUNK, process=1, stream=2, offset=SEGMENT, body=b"x" * (filled - EMPTY))
    writer.seal({"by": "agent", "reason": "ended"})


def killed(work: Callable[[], object], at: int) -> bool:
    """Do something in a process that is killed before its call `at` that changes a file.

    Returns whether it has come so far.
    """
    child = os.fork()
    if not child:
        try:
            _kill_at(at)
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _kill_at(at: int) -> None:
    calls = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return instead

    for name in CHANGING:
        setattr(os, name, counted(getattr(os, name)))


def seals(root: Path) -> list[int]:
    """The sequences of all events that end the record; they follow each other without a gap."""
    directory = open_folder(str(root / RUN))
    reader = Reader(directory, 1)
    events = []
    while (batch := reader.read()) is not None:
        events += [decode(content) for content in frames(bytes(batch.data))]
    reader.close()
    last = measure(directory)
    os.close(directory)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert last == (len(events), True)
    return [event.sequence for event in events if event.kind == Kind.RECORD_SEALED]


@pytest.mark.parametrize("filled", [EMPTY + 1, SEGMENT - 1, SEGMENT])
def test_whenever_a_writer_is_killed_its_record_has_one_end(tmp_path: Path, filled: int) -> None:
    at = 1
    while killed(partial(write, tmp_path / str(at), filled), at):
        root = tmp_path / str(at)
        if (root / RUN).exists():
            repair.seal_abandoned(str(root))
            assert len(seals(root)) == 1
            assert repair.seal_abandoned(str(root)) == []
        at += 1
    assert at > 20
    assert seals(tmp_path / str(at)) == [3]


@pytest.mark.parametrize("filled", [EMPTY + 1, SEGMENT - 1, SEGMENT])
def test_whenever_a_repair_is_killed_the_record_has_one_end(tmp_path: Path, filled: int) -> None:
    def leave(root: Path) -> None:
        writer = SpoolWriter.create(str(root), RUN, SpoolLimits(1 << 16, SEGMENT), "one-shot")
        writer.append(Kind.IO_CHUNK, process=1, stream=2, body=b"x" * (filled - EMPTY))
        writer.close()

    at = 1
    while True:
        root = tmp_path / str(at)
        leave(root)
        died = killed(partial(repair.seal_abandoned, str(root)), at)
        repair.seal_abandoned(str(root))
        assert seals(root) == [2]
        if not died:
            break
        at += 1
    assert at > 5


def test_no_segment_follows_the_one_that_the_end_has_filled(tmp_path: Path) -> None:
    write(tmp_path, SEGMENT - 1)
    assert sorted(path.name for path in (tmp_path / RUN).glob("*.seg")) == [
        segment_name(1),
        segment_name(2),
    ]


def test_an_end_is_found_before_an_empty_segment_that_an_older_agent_has_begun(
    tmp_path: Path,
) -> None:
    write(tmp_path, SEGMENT - 1)
    (tmp_path / RUN / segment_name(4)).touch()
    (tmp_path / RUN / "summary.json").write_text('{"through": 3}')
    assert repair.repair(str(tmp_path), RUN) is False
    assert seals(tmp_path) == [3]
