"""The spool: where a run's record waits in the workspace until the control plane has committed it.

One folder for each run, append-only segments in it, one writer at a time (an exclusive lock, held
for the writer's life). Frames are gathered and written to the page cache in batches, which the
writer's death does not lose, and made durable every 250 ms. Nothing is ever removed here but by
acknowledgement (`follow`).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
import zlib
from typing import Any, Dict, List, NamedTuple, Optional

from .frames import HEADER, PREFIX, Kind
from .segments import (
    DONE_DIRECTORY,
    HEADER_NAME,
    LOCK_NAME,
    RESERVE_NAME,
    contents,
    measure,
    read_ack,
    read_header,
    segment_path,
    segments,
    sync_directory,
)
from .status import random_uuid

VERSION = 1
SYNC_SECONDS = 0.25
BATCH_BYTES = 256 * 1024

# Lifecycle events fit into a spool that is full for output, and on a disk that is full: as much
# again as one batch is kept free for them in both cases.
_RESERVE_BYTES = 1024 * 1024
_LOOK_SECONDS = 0.02
_SEAL_PATIENCE_SECONDS = 5.0
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_DROPPABLE = (
    Kind.IO_CHUNK,
    Kind.FILE_CHANGE,
    Kind.FILE_DIFF_ENTRY,
    Kind.NETWORK_SOURCE_OBSERVED,
)


class SpoolLimits(NamedTuple):
    """How much a spool may hold, and how large its files become."""

    total_bytes: int = 256 * 1024 * 1024
    segment_bytes: int = 8 * 1024 * 1024


class SpoolExists(Exception):
    """The run has, or had, a spool here; `spool_id` is empty when it is gone already."""

    def __init__(self, spool_id: str) -> None:
        super().__init__("the run is recorded already")
        self.spool_id = spool_id


class SpoolMissing(Exception):
    """The run has no spool here."""


class SpoolBusy(Exception):
    """Another writer holds the spool."""


class SpoolFailed(Exception):
    """The spool cannot be made or written; the message says why."""


class SpoolWriter:
    """The one writer of a run's spool; made by `create` or `reopen`."""

    def __init__(self, directory: str, limits: SpoolLimits, lock_fd: int, run_id: str) -> None:
        self.run_id = run_id
        self.directory = directory
        self.spool_id = str(read_header(directory)["spoolId"])
        self.last_sequence = 0
        self.sealed = False
        self.torn_bytes = 0
        """Bytes that `reopen` cut off: the beginning of a frame that was never finished."""
        self.full_reason = "spool-full"
        self._lock_fd = lock_fd
        self._limits = limits
        self._io_limit = limits.total_bytes - min(_RESERVE_BYTES, limits.total_bytes // 4)
        self._batch: List[bytes] = []
        self._batch_bytes = 0
        self._fd = -1
        self._size = 0
        self._used = 0
        self._disk_full = False
        self._looked = 0.0
        self._sync_at: Optional[float] = None

    # ------------------------------------------------------------ making

    @classmethod
    def create(cls, root: str, run_id: str, limits: SpoolLimits, mode: str) -> SpoolWriter:
        """Make the spool of a run that has none, durably.

        Raises SpoolExists, also for a run whose record was taken over and removed, and SpoolFailed.
        """
        directory = os.path.join(root, run_id)
        if os.path.exists(os.path.join(root, DONE_DIRECTORY, run_id)):
            raise SpoolExists("")
        temporary = os.path.join(root, f".new-{random_uuid()}")
        lock_fd = -1
        try:
            os.mkdir(temporary, 0o700)
            lock_fd = _lock(temporary)
            header = {"version": VERSION, "runId": run_id, "spoolId": random_uuid(), "mode": mode}
            _write_durably(os.path.join(temporary, HEADER_NAME), json.dumps(header).encode())
            _reserve(temporary)
            writer = cls(temporary, limits, lock_fd, run_id)
            writer._begin_segment()
            try:
                os.rename(temporary, directory)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise SpoolExists(_spool_id(directory)) from None
            writer.directory = directory
            sync_directory(root)
        except SpoolExists:
            _give_up(temporary, lock_fd)
            raise
        except OSError as error:
            _give_up(temporary, lock_fd)
            raise SpoolFailed(f"the spool cannot be made: {error.strerror}") from None
        return writer

    @classmethod
    def reopen(cls, root: str, run_id: str, limits: SpoolLimits) -> SpoolWriter:
        """Go on with a spool whose writer is gone; a torn end is cut off.

        Raises SpoolMissing, SpoolBusy while its writer lives, and SpoolFailed.
        """
        directory = os.path.join(root, run_id)
        try:
            lock_fd = _lock(directory)
        except FileNotFoundError:
            raise SpoolMissing(run_id) from None
        except OSError as error:
            raise SpoolFailed(f"the spool cannot be opened: {error.strerror}") from None
        try:
            writer = cls(directory, limits, lock_fd, run_id)
            writer._continue()
        except FileNotFoundError:
            os.close(lock_fd)
            raise SpoolMissing(run_id) from None
        except (OSError, ValueError, KeyError) as error:
            os.close(lock_fd)
            raise SpoolFailed(f"the spool cannot be read: {error}") from None
        return writer

    def _continue(self) -> None:
        present = segments(self.directory)
        self.last_sequence = read_ack(self.directory)
        if present:
            last = present[-1]
            extent = measure(last)
            self.torn_bytes = last.size() - extent.end
            self._fd = os.open(last.path, os.O_RDWR | os.O_CLOEXEC)
            if self.torn_bytes:
                os.ftruncate(self._fd, extent.end)
            os.lseek(self._fd, extent.end, os.SEEK_SET)
            self._size = extent.end
            self.last_sequence = max(self.last_sequence, extent.last)
            self.sealed = extent.end > 0 and _ends_sealed(last.path, extent.end)
        else:
            self._begin_segment()
        self._used = sum(segment.size() for segment in segments(self.directory))
        try:
            _reserve(self.directory)
        except OSError:
            self._note_full_disk()

    # ------------------------------------------------------------ writing

    def append(
        self,
        kind: int,
        *,
        process: int = 0,
        stream: int = 0,
        method: int = 8,
        confidence: int = 1,
        offset: int = 0,
        meta: bytes = b"",
        body: bytes = b"",
        wall_us: Optional[int] = None,
        monotonic_ns: Optional[int] = None,
    ) -> bool:
        """Give the next sequence to an event and gather it; it is written by the next `flush`.

        False, and nothing has happened, when the event is output or an observation and the spool
        or the disk is full. Everything else always fits.
        """
        if kind in _DROPPABLE and not self._fits(len(meta) + len(body)):
            return False
        sequence = self.last_sequence + 1
        header = HEADER.pack(
            sequence,
            time.time_ns() // 1000 if wall_us is None else wall_us,
            time.monotonic_ns() if monotonic_ns is None else monotonic_ns,
            kind,
            method,
            confidence,
            process,
            stream,
            offset,
            len(meta),
        )
        content = header + meta + body
        self._batch.append(PREFIX.pack(len(content), zlib.crc32(content)))
        self._batch.append(content)
        self._batch_bytes += PREFIX.size + len(content)
        self.last_sequence = sequence
        if self._batch_bytes >= BATCH_BYTES:
            self.flush()
        return True

    def room(self) -> bool:
        """Whether output may be appended now."""
        return self._fits(0)

    def _fits(self, size: int) -> bool:
        if not self._disk_full and self._used + self._batch_bytes + size < self._io_limit:
            return True
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        if self._disk_full:
            self._try_disk()
        self._used = sum(segment.size() for segment in segments(self.directory))
        if self._disk_full:
            return False
        self.full_reason = "spool-full"
        return self._used + self._batch_bytes + size < self._io_limit

    def flush(self) -> None:
        """Write what was gathered to the page cache; on a full disk it stays gathered."""
        if not self._batch:
            return
        if self._size >= self._limits.segment_bytes:
            self._rotate()
        data = b"".join(self._batch)
        try:
            self._write(data)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            # Half a frame must not stay: what comes next begins where the last whole one ends.
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            self._note_full_disk()
            return
        self._batch.clear()
        self._batch_bytes = 0
        self._size += len(data)
        self._used += len(data)
        if self._sync_at is None:
            self._sync_at = time.monotonic() + SYNC_SECONDS

    def sync(self) -> None:
        """Write what was gathered and make it durable."""
        self.flush()
        os.fdatasync(self._fd)
        self._sync_at = None

    def deadline(self) -> Optional[float]:
        """When `tick` is to be called next (monotonic); None while there is nothing to do."""
        if self._batch:
            return time.monotonic() + (_LOOK_SECONDS if self._disk_full else 0.0)
        return self._sync_at

    def tick(self) -> None:
        """Write and make durable what is due."""
        if self._batch and (not self._disk_full or self._may_look()):
            self.flush()
        if self._sync_at is not None and time.monotonic() >= self._sync_at:
            self.sync()

    def seal(self, meta: Dict[str, Any]) -> None:
        """Append the last event, `events` filled in, make everything durable, and close.

        Raises SpoolFailed when the disk has no room even for that.
        """
        told = dict(meta, events=self.last_sequence + 1)
        self.append(Kind.RECORD_SEALED, meta=json.dumps(told, separators=(",", ":")).encode())
        self._write_everything()
        self.sealed = True
        self.close()

    def close(self) -> None:
        """Write what was gathered, and let go of the spool."""
        if self._fd < 0:
            return
        self.sync()
        os.close(self._fd)
        os.close(self._lock_fd)
        self._fd = self._lock_fd = -1

    def _write_everything(self) -> None:
        deadline = time.monotonic() + _SEAL_PATIENCE_SECONDS
        self._release_reserve()
        self.flush()
        while self._batch:
            if time.monotonic() >= deadline:
                raise SpoolFailed("the disk is full: the end of the record cannot be written")
            time.sleep(_LOOK_SECONDS)
            self.flush()
        self.sync()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]

    def _rotate(self) -> None:
        try:
            os.fdatasync(self._fd)
            finished = self._fd
            self._begin_segment(self.last_sequence - len(self._batch) // 2 + 1)
            os.close(finished)
            sync_directory(self.directory)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            self._note_full_disk()

    def _begin_segment(self, first: Optional[int] = None) -> None:
        path = segment_path(self.directory, first or self.last_sequence + 1)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self._size = 0

    # ------------------------------------------------------------ a full disk

    def _note_full_disk(self) -> None:
        self._disk_full = True
        self.full_reason = "disk-full"
        self._looked = time.monotonic()
        # What is gathered is at most a batch and some lifecycle events: the reserve is for them.
        self._release_reserve()

    def _release_reserve(self) -> None:
        try:
            os.unlink(os.path.join(self.directory, RESERVE_NAME))
        except FileNotFoundError:
            pass

    def _may_look(self) -> bool:
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def _try_disk(self) -> None:
        """Output is welcome again when the batch is written and the reserve is back."""
        self.flush()
        if self._batch:
            return
        try:
            _reserve(self.directory)
        except OSError:
            self._release_reserve()
            return
        self._disk_full = False


def open_runs(root: str) -> List[str]:
    """The runs whose writer is alive and whose record goes on."""
    found = []
    for run_id in run_ids(root):
        try:
            os.close(_lock(os.path.join(root, run_id)))
        except SpoolBusy:
            found.append(run_id)
        except OSError:
            continue
    return found


def run_ids(root: str) -> List[str]:
    """The runs that have a spool here."""
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if not name.startswith("."))


def _lock(directory: str) -> int:
    """Take the writer's lock; raises SpoolBusy."""
    path = os.path.join(directory, LOCK_NAME)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SpoolBusy(directory) from None
    return descriptor


def _spool_id(directory: str) -> str:
    try:
        return str(read_header(directory)["spoolId"])
    except (OSError, ValueError, KeyError):
        return ""


def _give_up(temporary: str, lock_fd: int) -> None:
    if lock_fd >= 0:
        os.close(lock_fd)
    shutil.rmtree(temporary, ignore_errors=True)


def _reserve(directory: str) -> None:
    """Take room on the disk that is given back when it is needed; raises OSError."""
    path = os.path.join(directory, RESERVE_NAME)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _RESERVE_BYTES)
    finally:
        os.close(descriptor)


def _write_durably(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _ends_sealed(path: str, end: int) -> bool:
    """Whether the last whole frame of a segment is the end of the record."""
    kind = None
    for content, position in contents(path):
        kind = HEADER.unpack_from(content)[3]
        if position >= end:
            break
    return kind == Kind.RECORD_SEALED
