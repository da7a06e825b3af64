"""The files of a spool: names, reading, and how far their frames are whole."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from .frames import PREFIX, FrameError, next_frame

HEADER_NAME = "spool.json"
LOCK_NAME = "lock"
ACK_NAME = "acked"
RESERVE_NAME = "reserve"
SUFFIX = ".seg"
DONE_DIRECTORY = ".done"
"""Holds an empty file for each run whose record was taken over whole and removed here."""

_READ_BYTES = 1024 * 1024


class Segment(NamedTuple):
    """One file of a spool; `first` is the sequence of its first frame."""

    first: int
    path: str

    def size(self) -> int:
        """Bytes in it now; 0 when it has been freed."""
        try:
            return os.stat(self.path).st_size
        except FileNotFoundError:
            return 0


class Extent(NamedTuple):
    """What a look through a segment found.

    `end`: where its last whole frame ends; `last`: that frame's sequence; `damage`: why what
    follows is no frame, None at the end of the file, `torn` when the file just stops inside one.
    """

    end: int
    last: int
    damage: Optional[str]


TORN = "the file ends inside a frame"


def segment_path(directory: str, first: int) -> str:
    """The file that begins with that sequence."""
    return os.path.join(directory, f"{first:020d}{SUFFIX}")


def segments(directory: str) -> List[Segment]:
    """The segments that are there, oldest first."""
    found = []
    for name in os.listdir(directory):
        stem = name[: -len(SUFFIX)]
        if name.endswith(SUFFIX) and stem.isdigit():
            found.append(Segment(int(stem), os.path.join(directory, name)))
    return sorted(found)


def read_header(directory: str) -> Dict[str, Any]:
    """The spool's own description; raises OSError or ValueError."""
    with open(os.path.join(directory, HEADER_NAME), "rb") as file:
        header: Dict[str, Any] = json.load(file)
    return header


def read_ack(directory: str) -> int:
    """Up to which sequence everything has been committed elsewhere."""
    try:
        with open(os.path.join(directory, ACK_NAME), "rb") as file:
            return int.from_bytes(file.read(8), "big")
    except OSError:
        return 0


def contents(path: str, start: int = 0) -> Iterator[Tuple[bytes, int]]:
    """The frames' contents from a position on, each with where it ends, in constant memory.

    Stops at the end of the file or inside a torn frame; raises FrameError at damage.
    """
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        buffer, base = b"", start
        while True:
            chunk = file.read(_READ_BYTES)
            if not chunk:
                return
            buffer += chunk
            position = 0
            while True:
                found = next_frame(buffer, position)
                if found is None:
                    break
                content, position = found
                if not content:
                    raise FrameError("an empty frame")
                yield content, base + position
            buffer = buffer[position:]
            base += position


def measure(segment: Segment) -> Extent:
    """Look through a segment for the end of what is whole."""
    end, last = 0, segment.first - 1
    try:
        for content, position in contents(segment.path):
            sequence = int.from_bytes(content[:8], "big")
            if sequence != last + 1:
                return Extent(end, last, f"sequence {sequence} follows {last}")
            end, last = position, sequence
    except FrameError as error:
        return Extent(end, last, str(error))
    return Extent(end, last, TORN if segment.size() > end else None)


def sync_directory(directory: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


assert PREFIX.size == 8  # what a keepalive and an empty prefix rely on
