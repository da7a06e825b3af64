"""One event of a run, and its frame: the form it has in the spool, on the wire and in the chain.

A frame is a prefix (length of the rest, CRC-32 of the rest; big endian) and the rest: the packed
header, the meta (JSON bytes, perhaps none) and the body (raw bytes, perhaps none). An unknown kind
is passed on as it is.

The control plane imports this module too, so that both ends speak the same bytes.
"""

from __future__ import annotations

import struct
import zlib
from typing import Iterator, NamedTuple, Optional, Tuple

PREFIX = struct.Struct("!II")
HEADER = struct.Struct("!QqQHBBIBQI")
"""sequence, wall clock (µs), monotonic clock (ns), kind, method, confidence, process number,
stream, offset, length of the meta."""

MAX_FRAME_BYTES = 4 * 1024 * 1024
"""No frame is longer; a length above this is damage, not data."""


class Kind:
    """What an event tells. Numbers are stored and never reused."""

    RECORD_STARTED = 1
    PROCESS_STARTED = 2
    PROCESS_EXITED = 3
    IO_CHUNK = 4
    PROCESS_STREAM_CLOSED = 5
    TERMINAL_RESIZED = 6
    INPUT_HIDDEN = 7
    TELEMETRY_DROPPED = 8
    FILE_CHANGE = 9
    FILE_WATCH_OVERFLOW = 10
    FILE_SNAPSHOT_COMPLETED = 11
    FILE_DIFF_AVAILABLE = 12
    FILE_DIFF_ENTRY = 13
    NETWORK_SOURCE_OBSERVED = 14
    COVERAGE_CHANGED = 15
    SIGNAL_SENT = 16
    RUNTIME_STATE_CHANGED = 17
    RECORD_SEALED = 18
    FORWARD_OPENED = 19
    FORWARD_CLOSED = 20
    FILE_ACCESSED = 21
    EGRESS_DECIDED = 22


KIND_NAMES = {
    Kind.RECORD_STARTED: "recordStarted",
    Kind.PROCESS_STARTED: "processStarted",
    Kind.PROCESS_EXITED: "processExited",
    Kind.IO_CHUNK: "ioChunk",
    Kind.PROCESS_STREAM_CLOSED: "processStreamClosed",
    Kind.TERMINAL_RESIZED: "terminalResized",
    Kind.INPUT_HIDDEN: "inputHidden",
    Kind.TELEMETRY_DROPPED: "telemetryDropped",
    Kind.FILE_CHANGE: "fileChange",
    Kind.FILE_WATCH_OVERFLOW: "fileWatchOverflow",
    Kind.FILE_SNAPSHOT_COMPLETED: "fileSnapshotCompleted",
    Kind.FILE_DIFF_AVAILABLE: "fileDiffAvailable",
    Kind.FILE_DIFF_ENTRY: "fileDiffEntry",
    Kind.NETWORK_SOURCE_OBSERVED: "networkSourceObserved",
    Kind.COVERAGE_CHANGED: "coverageChanged",
    Kind.SIGNAL_SENT: "signalSent",
    Kind.RUNTIME_STATE_CHANGED: "runtimeStateChanged",
    Kind.RECORD_SEALED: "recordSealed",
    Kind.FORWARD_OPENED: "forwardOpened",
    Kind.FORWARD_CLOSED: "forwardClosed",
    Kind.FILE_ACCESSED: "fileAccessed",
    Kind.EGRESS_DECIDED: "egressDecided",
}


class Stream:
    """Which stream of a process bytes belong to; 0 where an event has none."""

    NONE = 0
    STDIN = 1
    STDOUT = 2
    STDERR = 3
    PTY_INPUT = 4
    PTY_OUTPUT = 5


STREAM_NAMES = {
    Stream.STDIN: "stdin",
    Stream.STDOUT: "stdout",
    Stream.STDERR: "stderr",
    Stream.PTY_INPUT: "ptyInput",
    Stream.PTY_OUTPUT: "pty",
}


class Method:
    """How something came to be known."""

    UNSPECIFIED = 0
    PIPE = 1
    PTY = 2
    PROXY = 3
    INOTIFY = 4
    SNAPSHOT = 5
    EBPF = 6
    NETLINK = 7
    INTERNAL = 8
    POLL = 9


class Confidence:
    """How sure it is."""

    UNSPECIFIED = 0
    OBSERVED = 1
    INFERRED = 2
    UNKNOWN = 3


class FrameError(Exception):
    """The bytes at this place are no frame: torn, damaged, or something else."""


class Event(NamedTuple):
    """One event. `wall_us`: µs since the epoch; `monotonic_ns`: not comparable between machines.

    `offset` counts raw bytes of (process, stream); an I/O chunk covers `len(body)` bytes from it.
    """

    sequence: int
    wall_us: int
    monotonic_ns: int
    kind: int
    method: int
    confidence: int
    process: int
    stream: int
    offset: int
    meta: bytes
    body: bytes


def content_of(event: Event) -> bytes:
    """The event without the prefix: what the CRC and the hash chain cover."""
    header = HEADER.pack(*event[:9], len(event.meta))
    return b"".join((header, event.meta, event.body))


def encode(event: Event) -> bytes:
    """The whole frame."""
    content = content_of(event)
    return PREFIX.pack(len(content), zlib.crc32(content)) + content


def decode(content: bytes) -> Event:
    """The event in a frame's content (without prefix); raises FrameError."""
    if len(content) < HEADER.size:
        raise FrameError("shorter than a header")
    *fields, meta_length = HEADER.unpack_from(content)
    body_start = HEADER.size + meta_length
    if body_start > len(content):
        raise FrameError("the meta is longer than the frame")
    return Event._make((*fields, content[HEADER.size : body_start], content[body_start:]))


def next_frame(buffer: bytes, start: int) -> Optional[Tuple[bytes, int]]:
    """The content of the frame at `start` and where the next one begins; None when it is cut off.

    Raises FrameError when the length or the checksum shows that no frame is there. A keepalive (an
    empty frame) is returned as `b""`.
    """
    if len(buffer) - start < PREFIX.size:
        return None
    length, checksum = PREFIX.unpack_from(buffer, start)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes")
    end = start + PREFIX.size + length
    if len(buffer) < end:
        return None
    content = bytes(buffer[start + PREFIX.size : end])
    if zlib.crc32(content) != checksum:
        raise FrameError("the checksum does not fit")
    return content, end


def frames(buffer: bytes) -> Iterator[bytes]:
    """The contents of the whole frames at the start of `buffer`; raises FrameError at damage."""
    start = 0
    while True:
        found = next_frame(buffer, start)
        if found is None:
            return
        content, start = found
        yield content
