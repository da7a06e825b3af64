"""Whatever happens to a spool, what was stored stays as it was written, in a dense sequence.

Random schedules of writing, crashing, tearing, opening again, acknowledging and reading, against a
list of what was written. A disk that is full refuses what does not fit, as the kernel would.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runs.agent.acks import acknowledge, read_acknowledged
from runs.agent.frames import Kind, decode, frames
from runs.agent.segments import Reader, SpoolDamaged, list_segments, open_folder
from runs.agent.spool import SpoolLimits, SpoolWriter

RUN = "5d9ac2ae-2f4e-4c1b-9a74-2b1d6f0c7a55"
LIMITS = SpoolLimits(total_bytes=8192, segment_bytes=1024)


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

    def install(self) -> Callable[[], None]:
        """Put these in the place of the kernel's; returns what takes them away again."""
        saved = {name: getattr(os, name) for name in ("write", "posix_fallocate", "unlink")}
        for name in saved:
            setattr(os, name, getattr(self, name))

        def restore() -> None:
            for name, function in saved.items():
                setattr(os, name, function)

        return restore


class SpoolMachine(RuleBasedStateMachine):
    """The model is `stored`: the bodies that were accepted, by sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp()
        self.path = Path(self.root, RUN)
        self.disk = SmallDisk()
        self.restore = self.disk.install()
        self.writer = SpoolWriter.create(self.root, RUN, LIMITS, "one-shot")
        self.alive = True
        self.stored: dict[int, bytes] = {}

    def teardown(self) -> None:
        self.restore()
        if self.alive:
            self.writer.close()
        shutil.rmtree(self.root)

    @precondition(lambda self: self.alive)
    @rule(body=st.binary(max_size=700))
    def append_output(self, body: bytes) -> None:
        before = self.writer.last_sequence
        if self.writer.append(Kind.IO_CHUNK, process=1, stream=2, body=body):
            self.stored[before + 1] = body
        else:
            assert self.writer.full_reason in ("spool-full", "disk-full")
        assert self.writer.last_sequence == before + (before + 1 in self.stored)

    @precondition(lambda self: self.alive)
    @rule(body=st.binary(max_size=40))
    def append_lifecycle(self, body: bytes) -> None:
        assert self.writer.append(Kind.SIGNAL_SENT, body=body)
        self.stored[self.writer.last_sequence] = body

    @precondition(lambda self: self.alive and self.disk.left is None)
    @rule()
    def flush(self) -> None:
        self.writer.flush()

    @precondition(lambda self: self.alive)
    @rule()
    def sync(self) -> None:
        self.writer.sync()

    @precondition(lambda self: self.alive)
    @rule(torn=st.integers(0, 2000), junk=st.binary(max_size=20))
    def crash(self, torn: int, junk: bytes) -> None:
        """The batch is lost, and of what was not flushed any number of bytes."""
        self.writer._let_go()
        self.alive = False
        directory = open_folder(str(self.path))
        try:
            last = self.path / list_segments(directory)[-1].name
            acknowledged = read_acknowledged(directory)
        finally:
            os.close(directory)
        # What was acknowledged had been written; what is older than that is not torn.
        keep = self._size_up_to(last, acknowledged)
        size = last.stat().st_size
        cut = max(keep, size - torn)
        with last.open("r+b") as file:
            file.truncate(cut)
        if cut < size:
            with last.open("ab") as file:
                file.write(junk)

    def _size_up_to(self, path: Path, sequence: int) -> int:
        size = 0
        for content in frames(path.read_bytes()):
            if decode(content).sequence > sequence:
                break
            size += 8 + len(content)
        return size

    @precondition(lambda self: not self.alive)
    @rule()
    def reopen(self) -> None:
        self.disk.left = None
        self.writer = SpoolWriter.reopen(self.root, RUN)
        self.alive = True
        last = self.writer.last_sequence
        assert last >= self._acknowledged()
        self.stored = {sequence: body for sequence, body in self.stored.items() if sequence <= last}

    @rule(data=st.data())
    def acknowledge_some(self, data: st.DataObject) -> None:
        read = self._read(1)
        if not read:
            return
        directory = open_folder(str(self.path))
        try:
            # Around the borders of segments it matters most.
            borders = {
                segment.first - before for segment in list_segments(directory) for before in (1, 2)
            }
            chosen = sorted(borders & set(read)) or sorted(read)
            acknowledge(directory, data.draw(st.sampled_from(chosen)))
        finally:
            os.close(directory)

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
        self.writer._look_at = 0
        self.writer.room()
        self.writer.flush()
        read = self._read(1)
        first = min(read, default=self.writer.last_sequence + 1)
        assert first <= self._acknowledged() + 1
        assert read == {
            sequence: body for sequence, body in self.stored.items() if sequence >= first
        }

    @precondition(lambda self: self.alive and self.disk.left is None)
    @rule()
    def room_comes_back_once_all_is_acknowledged(self) -> None:
        self.writer._look_at = 0
        sequence = self.writer.last_sequence + 1
        if self.writer.append(Kind.IO_CHUNK, body=b"x" * 7000):
            self.stored[sequence] = b"x" * 7000
        self.writer._look_at = 0
        self.writer.room()
        self.writer.flush()
        directory = open_folder(str(self.path))
        try:
            acknowledge(directory, self.writer.last_sequence)
        finally:
            os.close(directory)
        self.writer._look_at = 0
        assert self.writer.room()

    @invariant()
    def nothing_is_freed_without_an_acknowledgement(self) -> None:
        directory = open_folder(str(self.path))
        try:
            assert list_segments(directory)[0].first <= read_acknowledged(directory) + 1
        finally:
            os.close(directory)

    def _acknowledged(self) -> int:
        directory = open_folder(str(self.path))
        try:
            return read_acknowledged(directory)
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
TestSpool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
