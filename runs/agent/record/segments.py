"""A spool as its readers see it: segments of whole frames, named by their first sequence.

Layout of a run's folder: `lock` (held by the writer for life), `spool.json` (whose spool this is),
segments, `acked` (how far the record is committed elsewhere), `summary.json` (totals of closed
segments) and `reserve` (room on the disk for the end of the record). A folder whose record is
committed to the end is moved to `.done/`, where an empty folder stays: a run never starts twice.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from typing import Any, Dict, List, NamedTuple, Optional

from .frames import HEADER, MAX_FRAME_BYTES, PREFIX, Kind

SUFFIX = ".seg"
LOCK = "lock"
IDENTITY = "spool.json"
ACKED = "acked"
SUMMARY = "summary.json"
RESERVE = "reserve"
DONE = ".done"
SNAPSHOT_FOLDER = "snapshot-"
"""How folders beside the runs begin to be named; the id of the run that they belong to follows."""

READ_BYTES = 1024 * 1024
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

# A frame's prefix, and its content as far as its kind.
_START = struct.Struct("!IIQqQH")
_SCAN_START = struct.Struct("!IIQ")


class SpoolDamaged(Exception):
    """A place in the middle of a spool holds no sound frame; the message names it."""


class Segment(NamedTuple):
    """One file of a spool and the sequence of its first frame."""

    first: int
    name: str


class Batch(NamedTuple):
    """Whole frames that follow each other, from sequence `first` up to `last`."""

    data: memoryview
    first: int
    last: int
    sealed: bool


def segment_name(first: int) -> str:
    """The name of the segment that begins with this sequence."""
    return f"{first:020d}{SUFFIX}"


def list_segments(directory: int) -> List[Segment]:
    """The segments that are there, oldest first."""
    names = (name for name in os.listdir(directory) if name.endswith(SUFFIX))
    return sorted(
        Segment(int(name[: -len(SUFFIX)]), name) for name in names if name[: -len(SUFFIX)].isdigit()
    )


def last_written(directory: int) -> int:
    """Where the last segment begins that holds something; 1 where none does, or none is there.

    A writer that has ended may have left an empty one behind its last event.
    """
    for segment in reversed(list_segments(directory)):
        if size_of(directory, segment.name):
            return segment.first
    return 1


def open_folder(path: str) -> int:
    """A descriptor of a folder; raises FileNotFoundError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)


def read_small(directory: int, name: str) -> bytes:
    """A small file of the folder; empty when it is not there."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
    except FileNotFoundError:
        return b""
    try:
        return os.read(fd, READ_BYTES)
    finally:
        os.close(fd)


def size_of(directory: int, name: str) -> int:
    """The size of a file of the folder; 0 when it has just been freed."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def read_json(directory: int, name: str) -> Dict[str, Any]:
    """A JSON object of the folder; empty when it is missing or was not written to its end."""
    try:
        value = json.loads(read_small(directory, name) or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class Reader:
    """Reads the frames of a spool in order, while it grows too.

    It holds nothing between two calls but a position, which is always the start of a frame: what
    was torn there may be cut and written anew. Sequences are left out only when they were freed.
    """

    def __init__(self, directory: int, first: int) -> None:
        """Begin in the segment that holds `first`, or in the oldest one after it."""
        self._directory = directory
        self._fd = -1
        self._offset = 0
        self._name = ""
        while True:
            segments = list_segments(directory)
            if not segments:
                raise SpoolDamaged("the spool has no segment")
            chosen = segments[0]
            for segment in segments:
                if segment.first <= first:
                    chosen = segment
            self.next_sequence = chosen.first
            try:
                self._open(chosen.name)
            except FileNotFoundError:
                # Freed just now; the segments after it are still there.
                continue
            return

    @property
    def place(self) -> str:
        """Where the next frame begins, for a person."""
        return f"segment {self._name}, byte {self._offset}, sequence {self.next_sequence}"

    @property
    def segment(self) -> str:
        """The segment that is being read."""
        return self._name

    @property
    def offset(self) -> int:
        """Where in the segment the next frame begins."""
        return self._offset

    def go_on(self, segment: str, offset: int, sequence: int) -> None:
        """Begin where another reader has stopped, if that is in this segment."""
        if segment == self._name:
            self._offset, self.next_sequence = offset, sequence

    def read(self) -> Optional[Batch]:
        """The next whole frames; None at the end of what is written (a torn frame is that too).

        Raises SpoolDamaged.
        """
        while True:
            data = os.pread(self._fd, READ_BYTES, self._offset)
            batch = self._whole_frames(data) if data else None
            if batch is None and len(data) >= PREFIX.size:
                # One frame longer than a read, or one that is torn.
                length = PREFIX.unpack_from(data)[0] + PREFIX.size
                if length > len(data) == READ_BYTES:
                    batch = self._whole_frames(os.pread(self._fd, length, self._offset))
            if batch is not None:
                return batch
            if not self._advance():
                return None

    def remainder(self) -> bytes:
        """What is behind the last whole frame of the segment."""
        parts: List[bytes] = []
        at = self._offset
        while True:
            part = os.pread(self._fd, READ_BYTES, at)
            if not part:
                return b"".join(parts)
            parts.append(part)
            at += len(part)

    def sync(self) -> None:
        """Wait until the disk has the segment that is being read."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _whole_frames(self, data: bytes) -> Optional[Batch]:
        view = memoryview(data)
        size = len(data)
        at = 0
        sequence = self.next_sequence
        sealed = False
        problem = ""
        unpack, crc32, smallest = _START.unpack_from, zlib.crc32, HEADER.size
        while size - at >= _START.size:
            length, checksum, found, _, _, kind = unpack(data, at)
            if not smallest <= length <= MAX_FRAME_BYTES:
                problem = "no frame begins here"
                break
            end = at + 8 + length
            if end > size:
                break
            if crc32(view[at + 8 : end]) != checksum:
                problem = "the checksum does not fit"
                break
            if found != sequence:
                problem = f"the frame has sequence {found}"
                break
            sealed = kind == Kind.RECORD_SEALED
            sequence += 1
            at = end
        if not at:
            # What is whole before the damage is given out first; the next call comes here again.
            if problem:
                raise SpoolDamaged(f"{problem}: {self.place}")
            return None
        first = self.next_sequence
        self._offset += at
        self.next_sequence = sequence
        return Batch(view[:at], first, sequence - 1, sealed)

    def _advance(self) -> bool:
        """Go to the next segment if there is one. It begins where this one has ended.

        When others had it freed meanwhile, to the oldest that is left: all before is acknowledged.
        """
        name = segment_name(self.next_sequence)
        if name == self._name:
            return False
        before, ended = self._fd, self._offset
        try:
            self._open(name)
        except FileNotFoundError:
            return self._pass_over_freed()
        left_over = os.fstat(before).st_size > ended
        os.close(before)
        if left_over:
            raise SpoolDamaged(f"torn, though not at the end of the spool: before segment {name}")
        return True

    def _pass_over_freed(self) -> bool:
        if os.fstat(self._fd).st_nlink:
            return False
        before = self._fd
        for segment in list_segments(self._directory):
            if segment.first > self.next_sequence:
                try:
                    self._open(segment.name)
                except FileNotFoundError:
                    continue
                os.close(before)
                self.next_sequence = segment.first
                return True
        return False

    def _open(self, name: str) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(name, flags, dir_fd=self._directory)
        self._name = name
        self._offset = 0


def holds_a_frame(data: bytes, after: int) -> bool:
    """Whether somewhere in `data` a sound frame with a sequence above `after` begins.

    That tells damage (something follows) from a torn tail (nothing does).
    """
    size = len(data)
    smallest = HEADER.size
    if not data.strip(b"\0"):
        return False
    most = after + 1 + size // smallest
    for at in range(1, size - smallest - PREFIX.size + 1):
        length, checksum, sequence = _SCAN_START.unpack_from(data, at)
        plausible = smallest <= length <= size - at - 8 and after < sequence <= most
        if plausible and zlib.crc32(memoryview(data)[at + 8 : at + 8 + length]) == checksum:
            return True
    return False


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    fd = open_folder(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
