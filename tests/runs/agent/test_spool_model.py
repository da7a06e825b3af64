"""Whatever happens to a spool, what was stored stays as it was written, in a dense sequence.

Random schedules of writing, crashes, outages, opening again, acknowledging and reading, against a
list of what was written. A disk that is full refuses what does not fit, as the kernel would. Time
is the test's own. A crash goes on with a copy of the folder, as it was at that moment.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from runs.agent.record import spool as spool_module
from runs.agent.record.acks import acknowledge, read_acknowledged
from runs.agent.record.frames import Kind, decode, frames
from runs.agent.record.segments import Reader, Segment, SpoolDamaged, list_segments, open_folder
from runs.agent.record.spool import SpoolLimits, SpoolWriter

RUN = "5d9ac2ae-2f4e-4c1b-9a74-2b1d6f0c7a55"
LIMITS = SpoolLimits(total_bytes=4096, segment_bytes=700)


class SmallDisk:
    """The system calls that take room on a disk, as on one that has `left` bytes of it."""

    def __init__(self) -> None:
        self.left: int | None = None
        self._write, self._allocate, self._unlink = os.write, os.posix_fallocate, os.unlink

    def write(self, fd: int, data: Any) -> int:
        if self.left is None:
            return self._write(fd, data)
        size = min(len(data), self.left)
        if not size and len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= size
        return self._write(fd, data[:size])

    def posix_fallocate(self, fd: int, offset: int, size: int) -> None:
        if self.left is not None:
            if size > self.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.left -= size
        self._allocate(fd, offset, size)

    def unlink(self, name: str, *, dir_fd: int | None = None) -> None:
        size = 0
        if self.left is not None:
            try:
                size = os.stat(name, dir_fd=dir_fd).st_size
            except FileNotFoundError:
                size = 0
        self._unlink(name, dir_fd=dir_fd)
        if self.left is not None:
            self.left += size

    def install(self) -> ExitStack:
        """Put these in the place of the kernel's; closing the result takes them away again."""
        stack = ExitStack()
        for name in ("write", "posix_fallocate", "unlink"):
            stack.enter_context(patch.object(os, name, getattr(self, name)))
        return stack


class SpoolMachine(RuleBasedStateMachine):
    """The model: the bodies that the spool must hold, by sequence, and what was acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        self.lives = 1
        self.disk = SmallDisk()
        self.patched = self.disk.install()
        self.now = 1.0
        clock = SimpleNamespace(
            monotonic=lambda: self.now,
            monotonic_ns=lambda: int(self.now * 1e9),
            time_ns=lambda: int(self.now * 1e9),
        )
        self.patched.enter_context(patch.object(spool_module, "time", clock))
        self.writer = SpoolWriter.create(str(self.root), RUN, LIMITS, "one-shot")
        self.alive = True
        self.stored: dict[int, bytes] = {}
        self.acknowledged = 0

    @property
    def root(self) -> Path:
        return self.base / str(self.lives)

    @property
    def path(self) -> Path:
        return self.root / RUN

    def teardown(self) -> None:
        self.patched.close()
        if self.alive:
            self.writer.close()
        shutil.rmtree(self.base)

    def append(self, kind: int, size: int) -> bool:
        sequence = self.writer.last_sequence + 1
        assert sequence > self.acknowledged
        body = bytes([sequence % 251]) * size
        if self.writer.append(kind, process=1, stream=2, body=body):
            self.stored[sequence] = body
        assert self.writer.last_sequence == sequence - (sequence not in self.stored)
        return sequence in self.stored

    @precondition(lambda self: self.alive)
    @rule(size=st.integers(0, 300), count=st.integers(1, 12), flushed=st.booleans())
    def append_output(self, size: int, count: int, flushed: bool) -> None:
        for _ in range(count):
            if not self.append(Kind.IO_CHUNK, size):
                assert self.writer.full_reason in ("spool-full", "disk-full")
        if flushed:
            self.writer.flush()

    @precondition(lambda self: self.alive)
    @rule(size=st.integers(0, 40))
    def append_lifecycle(self, size: int) -> None:
        assert self.append(Kind.SIGNAL_SENT, size)

    @rule(seconds=st.sampled_from([0.006, 0.02, 0.11, 0.3]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        if self.alive:
            self.writer.tick()
            due = self.writer.deadline()
            assert due is None or due > self.now

    @precondition(lambda self: self.alive)
    @rule()
    def flush(self) -> None:
        self.writer.flush()

    @precondition(lambda self: self.alive)
    @rule()
    def sync(self) -> None:
        self.writer.sync()

    @precondition(lambda self: self.alive)
    @rule(
        torn=st.one_of(st.just(0), st.integers(0, 600)),
        behind=st.sampled_from(["nothing", "zeros", "part", "twice"]),
    )
    def crash(self, torn: int, behind: str) -> None:
        """The batch is lost, and in an outage any part of the last segment; it may end in junk."""
        before = self.path
        self.lives += 1
        shutil.copytree(before, self.path)
        self.disk.left = None
        self.writer.close()
        shutil.rmtree(before)
        self.alive = False
        segment = self._segments()[-1]
        file = self.path / segment.name
        written = file.read_bytes()
        content = written[: max(0, len(written) - torn)]
        whole = list(frames(content))
        if behind == "zeros":
            content += bytes(100)
        elif behind == "part":
            content += b"\0\0\0\x39torn"
        elif behind == "twice" and whole and sum(map(len, whole)) + 8 * len(whole) == len(content):
            content += content[-len(whole[-1]) - 8 :]
        file.write_bytes(content)
        # Zeros may be just what was torn off.
        same = [one == other for one, other in zip(written, content, strict=False)]
        sound = written[: (*same, False).index(False)]
        self.kept = segment.first - 1 + len(list(frames(sound)))

    @precondition(lambda self: not self.alive)
    @rule()
    def reopen(self) -> None:
        self.writer = SpoolWriter.reopen(str(self.root), RUN)
        self.alive = True
        self.stored = {each: body for each, body in self.stored.items() if each <= self.kept}
        if self.kept < self.acknowledged:
            # Only what is newer is kept, behind two events that tell of the outage.
            self.stored = dict.fromkeys((self.acknowledged + 1, self.acknowledged + 2), b"")
        assert self.writer.last_sequence == max(self.stored, default=self.acknowledged)
        assert self.writer.last_sequence >= self.acknowledged

    @rule(data=st.data())
    def acknowledge_some(self, data: st.DataObject) -> None:
        read = self._read(1)
        if read:
            # Around the borders of segments it matters most.
            firsts = [segment.first for segment in self._segments()]
            borders = {first - before for first in firsts for before in (1, 2)} & set(read)
            borders.add(max(read))
            self._acknowledge(data.draw(st.sampled_from(sorted(borders))))

    def _acknowledge(self, sequence: int) -> None:
        self.acknowledged = max(self.acknowledged, sequence)
        before = self._segments()
        directory = open_folder(str(self.path))
        try:
            assert acknowledge(directory, sequence) == self.acknowledged
            assert read_acknowledged(directory) == self.acknowledged
        finally:
            os.close(directory)
        following = [segment.first - 1 for segment in before[1:]]
        kept = [
            segment
            for segment, end in zip(before, [*following, None], strict=True)
            if end is None or end > self.acknowledged
        ]
        assert self._segments() == kept

    @rule(start=st.integers(1, 60))
    def read_from(self, start: int) -> None:
        read = self._read(start)
        assert sorted(read) == list(range(min(read, default=0), max(read, default=-1) + 1))
        for sequence, body in read.items():
            assert self.stored[sequence] == body

    @precondition(lambda self: self.alive)
    @rule(left=st.integers(0, 1500))
    def fill_the_disk(self, left: int) -> None:
        self.disk.left = left

    @rule()
    def empty_the_disk(self) -> None:
        self.disk.left = None

    @precondition(lambda self: self.alive and self.disk.left is None)
    @rule()
    def everything_that_was_accepted_is_there(self) -> None:
        self._look_and_write()
        read = self._read(1)
        first = min(read, default=self.writer.last_sequence + 1)
        assert first <= self.acknowledged + 1
        assert read == {each: body for each, body in self.stored.items() if each >= first}
        assert self.writer.last_sequence == max(read, default=self.writer.last_sequence)

    @precondition(lambda self: self.alive)
    @rule(left=st.integers(0, 900), size=st.integers(0, 300), count=st.integers(1, 12))
    def the_disk_is_full_for_a_moment(self, left: int, size: int, count: int) -> None:
        self.disk.left = left
        self.append_output(size, count, True)
        self.disk.left = None
        self.everything_that_was_accepted_is_there()

    @precondition(lambda self: self.alive and self.disk.left is None)
    @rule()
    def room_comes_back_once_all_is_acknowledged(self) -> None:
        self.append(Kind.IO_CHUNK, 3000)
        self._look_and_write()
        if self.writer.last_sequence in self._read(1):
            self._acknowledge(self.writer.last_sequence)
        self.now += 1
        assert self.writer.room()

    def _look_and_write(self) -> None:
        self.now += 1
        self.writer.room()
        self.writer.flush()

    def _segments(self) -> list[Segment]:
        directory = open_folder(str(self.path))
        try:
            return list_segments(directory)
        finally:
            os.close(directory)

    def _read(self, start: int) -> dict[int, bytes]:
        directory = open_folder(str(self.path))
        reader = Reader(directory, start)
        found = {}
        try:
            while (batch := reader.read()) is not None:
                for content in frames(bytes(batch.data)):
                    event = decode(content)
                    found[event.sequence] = event.body
        except SpoolDamaged as error:
            # Torn bytes at the end of a dead writer's spool are no frame.
            if self.alive:
                raise AssertionError(str(error)) from error
        finally:
            reader.close()
            os.close(directory)
        return found


TestSpool = SpoolMachine.TestCase
TestSpool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
