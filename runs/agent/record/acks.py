"""What is committed elsewhere: remembered, and freed here. Nothing else ever frees anything."""

from __future__ import annotations

import fcntl
import os
import struct
import zlib

from .segments import ACKED, DISK_FULL, DONE, list_segments, open_folder, read_small, sync_folder

_ACK = struct.Struct("!QI")


def packed(sequence: int) -> bytes:
    """What is remembered of an acknowledgement."""
    return _ACK.pack(sequence, zlib.crc32(sequence.to_bytes(8, "big")))


def read_acknowledged(directory: int) -> int:
    """Up to which sequence the record is known to be committed elsewhere."""
    content = read_small(directory, ACKED)
    if len(content) != _ACK.size:
        return 0
    sequence, checksum = _ACK.unpack(content)
    return int(sequence) if zlib.crc32(content[:8]) == checksum else 0


def acknowledge(directory: int, sequence: int) -> int:
    """Remember durably that everything up to `sequence` is committed, and free whole segments.

    The last segment stays. An older acknowledgement changes nothing. Returns what is remembered:
    of one that a full disk has no room for, what was before. Segments are freed only after their
    acknowledgement is on the disk.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(ACKED, flags, 0o600, dir_fd=directory)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        known = read_acknowledged(directory)
        if sequence > known:
            try:
                os.pwrite(fd, packed(sequence), 0)
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                return known
            os.fdatasync(fd)
        sequence = max(sequence, known)
        free(directory, sequence)
    finally:
        os.close(fd)
    return sequence


def free(directory: int, acknowledged: int) -> None:
    """Remove the segments that hold nothing newer than what is durably acknowledged, but the last.

    Any number of processes may do so at once.
    """
    segments = list_segments(directory)
    for segment, following in zip(segments, segments[1:]):
        if following.first - 1 > acknowledged:
            break
        _unlink(directory, segment.name)


def remove_spool(root: str, run_id: str) -> None:
    """Remove a run's folder. What stays is an empty one that says that the run has been.

    Moving the folder is the moment that counts; a crash before it changes nothing, and what a
    crash after it leaves is removed by `clear_removed`.
    """
    os.makedirs(os.path.join(root, DONE), mode=0o700, exist_ok=True)
    gone = os.path.join(root, DONE, run_id)
    try:
        os.rename(os.path.join(root, run_id), gone)
    except FileNotFoundError:
        return
    sync_folder(root)
    sync_folder(os.path.join(root, DONE))
    _empty(gone)


def clear_removed(root: str) -> None:
    """Finish removals that a crash interrupted."""
    done = os.path.join(root, DONE)
    for run_id in os.listdir(done) if os.path.isdir(done) else []:
        _empty(os.path.join(done, run_id))


def _empty(path: str) -> None:
    fd = open_folder(path)
    try:
        for name in os.listdir(fd):
            _unlink(fd, name)
    finally:
        os.close(fd)


def _unlink(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
