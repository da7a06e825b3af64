"""The writer of a run's spool: the one place where an event gets its sequence.

Events are gathered, written to the page cache a few milliseconds later and fsynced every 250 ms.
Nothing is freed here: `tail` does that once the control plane has committed it. When the spool is
full, or the disk, events of I/O are refused; the events of a run's life always fit, thanks to a
reserve.
"""

from __future__ import annotations

import errno
import json
import os
import time
import zlib
from typing import Any, Dict, List, Optional, Tuple

from .frames import HEADER, PREFIX, Confidence, Kind, Method, decode
from .segments import (
    DONE,
    IDENTITY,
    RESERVE,
    SUMMARY,
    Reader,
    SpoolDamaged,
    list_segments,
    open_folder,
    read_json,
    segment_name,
    size_of,
    sync_folder,
)
from .spool_folder import (
    SpoolBusy,
    SpoolExists,
    SpoolFailed,
    SpoolLimits,
    SpoolMissing,
    discard,
    folder_of,
    limits_of,
    refuse_existing,
    replace_in,
    take_lock,
    unlink_in,
)
from .status import random_uuid, replace_file
from .summary import Summary, read_to_end

__all__ = [
    "SpoolBusy",
    "SpoolExists",
    "SpoolFailed",
    "SpoolLimits",
    "SpoolMissing",
    "SpoolWriter",
    "open_runs",
    "seal_abandoned",
]

FLUSH_SECONDS = 0.005
SYNC_SECONDS = 0.25
DROPPABLE = frozenset(
    (Kind.IO_CHUNK, Kind.FILE_CHANGE, Kind.FILE_DIFF_ENTRY, Kind.NETWORK_SOURCE_OBSERVED)
)

_VERSION = 1
_BATCH_BYTES = 256 * 1024
_RESERVE_BYTES = 1024 * 1024
# Room for one more chunk: what `room` waits for after a refusal.
_CHUNK_BYTES = 64 * 1024
_LOOK_SECONDS = 0.01
_LOOK_AT_DISK_SECONDS = 0.1
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class SpoolWriter:
    """The only writer of one spool; it holds the lock until it is closed.

    Public attributes: `run_id`, `spool_id`, `mode`, `last_sequence`, `sealed`, and `summary` with
    the totals of what was written, in earlier lives too.
    """

    @classmethod
    def create(cls, root: str, run_id: str, limits: SpoolLimits, mode: str) -> SpoolWriter:
        """Begin a run's spool. It is there whole, durably and locked, or not at all.

        Raises SpoolExists, and SpoolFailed when the run cannot be recorded.
        """
        path = folder_of(root, run_id)
        done = os.path.join(root, DONE, run_id)
        spool_id = random_uuid()
        fresh = os.path.join(root, ".new-" + spool_id)
        identity = {
            "version": _VERSION,
            "runId": run_id,
            "spoolId": spool_id,
            "mode": mode,
            "spoolBytes": limits.total_bytes,
            "segmentBytes": limits.segment_bytes,
        }
        try:
            os.makedirs(root, mode=0o700, exist_ok=True)
            os.makedirs(os.path.join(root, DONE), mode=0o700, exist_ok=True)
            refuse_existing(path, done, run_id)
            writer = cls._create(fresh, identity, limits)
        except OSError as error:
            discard(fresh)
            raise SpoolFailed(f"the spool cannot be created: {error.strerror}") from error
        try:
            # Fails when there is one, as that is not empty: of two only one comes to be.
            os.rename(fresh, path)
            sync_folder(root)
        except OSError as error:
            writer.close()
            discard(fresh)
            refuse_existing(path, done, run_id)
            raise SpoolFailed(f"the spool cannot be created: {error.strerror}") from error
        if os.path.isdir(done):
            # The run came to its end between the look and the move.
            writer.close()
            discard(path)
            raise SpoolExists(run_id, "")
        return writer

    @classmethod
    def _create(cls, path: str, identity: Dict[str, Any], limits: SpoolLimits) -> SpoolWriter:
        os.mkdir(path, 0o700)
        replace_file(path, IDENTITY, json.dumps(identity).encode("ascii"))
        directory = open_folder(path)
        writer = cls(directory, take_lock(directory), identity, limits)
        try:
            writer._open_segment()
            if not writer._reserve():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            writer.close()
            raise
        return writer

    @classmethod
    def reopen(
        cls, root: str, run_id: str, limits: Optional[SpoolLimits] = None, *, patience: float = 1.0
    ) -> SpoolWriter:
        """Go on with a spool whose writer has died; a torn tail is cut.

        `limits`: None for those it was created with. `patience`: seconds to wait for the lock.

        Raises SpoolMissing, SpoolBusy, and SpoolFailed when it is damaged elsewhere: then nothing
        was changed.
        """
        try:
            directory = open_folder(folder_of(root, run_id))
        except FileNotFoundError as error:
            raise SpoolMissing(f"the run {run_id} has no spool") from error
        try:
            lock = take_lock(directory, patience=patience)
            identity = read_json(directory, IDENTITY)
            writer = cls(directory, lock, identity, limits or limits_of(identity))
        except BaseException:
            os.close(directory)
            raise
        try:
            writer._recover()
        except SpoolDamaged as error:
            writer._let_go()
            raise SpoolFailed(f"the spool is damaged: {error}") from error
        except OSError as error:
            writer._let_go()
            raise SpoolFailed(f"the spool cannot be opened: {error.strerror}") from error
        return writer

    def __init__(
        self, directory: int, lock: int, identity: Dict[str, Any], limits: SpoolLimits
    ) -> None:
        self.run_id: str = identity["runId"]
        self.spool_id: str = identity["spoolId"]
        self.mode: str = identity["mode"]
        self.last_sequence = 0
        self.sealed = False
        self.summary = Summary()
        self._directory = directory
        self._lock = lock
        reserve = min(_RESERVE_BYTES, limits.total_bytes // 8)
        self._reserve_bytes = reserve
        self._io_limit = limits.total_bytes - reserve
        # Several segments fit, so that some can be freed while one is being written.
        self._segment_bytes = max(1, min(limits.segment_bytes, limits.total_bytes // 4))
        self._batch_limit = min(_BATCH_BYTES, self._segment_bytes)
        self._batch: List[bytes] = []
        self._batch_bytes = 0
        self._flush_at: Optional[float] = None
        self._sync_at: Optional[float] = None
        self._look_at = 0.0
        self._closed: List[Tuple[str, int]] = []
        self._used = 0
        """Bytes of all segments and of the batch."""
        self._fd = -1
        self._name = ""
        self._size = 0
        self._full = False
        self._disk_full = False

    @property
    def full_reason(self) -> str:
        """Why the last refused event was refused."""
        return "disk-full" if self._disk_full else "spool-full"

    def append(
        self,
        kind: int,
        *,
        process: int = 0,
        stream: int = 0,
        method: int = Method.INTERNAL,
        confidence: int = Confidence.OBSERVED,
        offset: int = 0,
        meta: bytes = b"",
        body: bytes = b"",
        wall_us: Optional[int] = None,
        monotonic_ns: Optional[int] = None,
    ) -> bool:
        """Give an event its sequence; it is written soon after.

        False, and nothing changed, when it is one of I/O, files or network and there is no room.
        Raises SpoolFailed when the file cannot be written for another reason than a full disk.
        """
        if self.sealed or self._directory < 0:
            raise SpoolFailed("the spool is sealed or closed")
        size = PREFIX.size + HEADER.size + len(meta) + len(body)
        if (
            (self._used + size > self._io_limit or self._full or self._disk_full)
            and kind in DROPPABLE
            and not self._find_room(size)
        ):
            return False
        if wall_us is None:
            wall_us = time.time_ns() // 1000
        if monotonic_ns is None:
            monotonic_ns = time.monotonic_ns()
        sequence = self.last_sequence + 1
        content = b"".join(
            (
                HEADER.pack(
                    sequence,
                    wall_us,
                    monotonic_ns,
                    kind,
                    method,
                    confidence,
                    process,
                    stream,
                    offset,
                    len(meta),
                ),
                meta,
                body,
            )
        )
        self._batch.append(PREFIX.pack(len(content), zlib.crc32(content)) + content)
        self._batch_bytes += size
        self._used += size
        self.last_sequence = sequence
        if kind == Kind.IO_CHUNK:
            self.summary.note_chunk(sequence, process, stream, offset + len(body))
        else:
            self.summary.note(decode(content))
        if self._flush_at is None:
            self._flush_at = time.monotonic() + FLUSH_SECONDS
        if self._batch_bytes >= self._batch_limit:
            self.flush()
        return True

    def room(self) -> bool:
        """Whether I/O may be appended now. After a refusal it looks whether that has changed."""
        if self._disk_full or self._full:
            return self._find_room(_CHUNK_BYTES)
        return True

    def flush(self) -> None:
        """Hand everything to the kernel. On a full disk the rest stays here and is tried again."""
        self._flush_at = None
        while self._batch:
            if not self._write_batch() and not self._release_reserve():
                self._flush_at = time.monotonic() + _LOOK_AT_DISK_SECONDS
                return
        if self._size >= self._segment_bytes:
            self._roll()

    def sync(self) -> None:
        """Flush, and wait until the disk has it."""
        self.flush()
        self._sync_at = None
        if self._fd >= 0:
            self._sync_file()

    def deadline(self) -> Optional[float]:
        """When `tick` must be called next, in monotonic seconds; None: nothing is due."""
        if self._flush_at is None:
            return self._sync_at
        if self._sync_at is None:
            return self._flush_at
        return min(self._flush_at, self._sync_at)

    def tick(self) -> None:
        """Write and fsync what is due."""
        if self._flush_at is None and self._sync_at is None:
            return
        now = time.monotonic()
        if self._flush_at is not None and now >= self._flush_at:
            self.flush()
        if self._sync_at is not None and now >= self._sync_at:
            self.sync()

    def seal(self, meta: Dict[str, Any]) -> None:
        """End the record: its last event is durable when this returns, and the writer closed.

        `events` is filled in. Raises SpoolFailed when the disk has no room for the end; then the
        spool is unsealed, as after a crash.
        """
        whole = {**meta, "events": self.last_sequence + 1}
        content = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        try:
            self.append(Kind.RECORD_SEALED, meta=content)
            self.sync()
            if self._batch:
                raise SpoolFailed("the disk has no room for the end of the record")
            self.sealed = True
        finally:
            self.close()

    def close(self) -> None:
        """Write what is left and give up the lock. A second call changes nothing."""
        if self._directory < 0:
            return
        try:
            if not self.sealed:
                self.sync()
            else:
                self._release_reserve()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for fd in (self._fd, self._directory, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._directory = self._lock = -1

    # Room

    def _find_room(self, size: int) -> bool:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._forget_freed()
            if self._used and not self._fits(size):
                self._let_go_of_active()
            if self._disk_full:
                self._look_at = now + _LOOK_AT_DISK_SECONDS
                self.flush()
                self._disk_full = bool(self._batch) or not self._reserve()
        if self._disk_full:
            return False
        fits = self._fits(size)
        self._full = not (fits or self._fits(min(size, _CHUNK_BYTES)))
        return fits

    def _fits(self, size: int) -> bool:
        # Alone in the spool any event fits: otherwise one that is too large would wait for ever.
        return self._used + size <= self._io_limit or not self._used

    def _forget_freed(self) -> None:
        if not self._closed:
            return
        there = {segment.name for segment in list_segments(self._directory)}
        for name, size in self._closed:
            if name not in there:
                self._used -= size
        self._closed = [entry for entry in self._closed if entry[0] in there]

    def _let_go_of_active(self) -> None:
        """Begin a new segment, so that all that is stored can be freed."""
        self.flush()
        if not self._batch and (not self._closed or self._size * 4 >= self._segment_bytes):
            self._roll()

    # Files

    def _roll(self) -> None:
        """Begin the next segment. What is in the one before is durable then."""
        if not self._size:
            return
        self._sync_file()
        try:
            replace_in(self._directory, SUMMARY, self.summary.stored())
            self._open_segment()
        except OSError as error:
            # On a full disk a larger segment is better than none.
            if error.errno not in _DISK_FULL:
                raise SpoolFailed(f"no new segment: {error.strerror}") from error
            self._disk_full = True

    def _open_segment(self) -> None:
        name = segment_name(self.last_sequence + 1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(name, flags, 0o600, dir_fd=self._directory)
        if self._fd >= 0:
            self._closed.append((self._name, self._size))
            os.close(self._fd)
        self._fd, self._name, self._size = fd, name, 0
        os.fsync(self._directory)

    def _write_batch(self) -> bool:
        """Write the batch; False when the disk is full, and then only whole frames were written."""
        data = memoryview(b"".join(self._batch))
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            self._keep_whole_frames(written)
            if error.errno not in _DISK_FULL:
                raise SpoolFailed(f"the spool cannot be written: {error.strerror}") from error
            self._disk_full = True
            return False
        self._batch = []
        self._batch_bytes = 0
        self._count_written(written)
        return True

    def _keep_whole_frames(self, written: int) -> None:
        # A reader may have seen the whole ones already: they stay what they are.
        whole = count = 0
        while whole + len(self._batch[count]) <= written:
            whole += len(self._batch[count])
            count += 1
        os.ftruncate(self._fd, self._size + whole)
        self._batch = self._batch[count:]
        self._batch_bytes -= whole
        self._count_written(whole)

    def _count_written(self, size: int) -> None:
        self._size += size
        if size and self._sync_at is None:
            self._sync_at = time.monotonic() + SYNC_SECONDS

    def _sync_file(self) -> None:
        self._sync_at = None
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise SpoolFailed(f"the spool cannot be made durable: {error.strerror}") from error

    def _reserve(self) -> bool:
        """Keep room on the disk for the end of the record; False when there is none."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(RESERVE, flags, 0o600, dir_fd=self._directory)
            try:
                os.posix_fallocate(fd, 0, max(1, self._reserve_bytes))
            finally:
                os.close(fd)
        except OSError as error:
            unlink_in(self._directory, RESERVE)
            if error.errno not in _DISK_FULL:
                raise SpoolFailed(f"no room can be reserved: {error.strerror}") from error
            return False
        return True

    def _release_reserve(self) -> bool:
        return unlink_in(self._directory, RESERVE)

    def _recover(self) -> None:
        """Read what an earlier life has left, and cut what it did not write to its end."""
        self.summary = Summary(read_json(self._directory, SUMMARY))
        reader = Reader(self._directory, self.summary.through + 1)
        try:
            segments = list_segments(self._directory)
            self.last_sequence, self.sealed = read_to_end(reader, segments[-1].name, self.summary)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._name, self._size = reader.segment, reader.offset
            self._fd = os.open(self._name, flags, dir_fd=self._directory)
            os.ftruncate(self._fd, self._size)
            os.fsync(self._fd)
        finally:
            reader.close()
        for segment in segments[:-1]:
            size = size_of(self._directory, segment.name)
            self._closed.append((segment.name, size))
            self._used += size
        self._used += self._size
        if not self.sealed:
            self._disk_full = not self._reserve()


def open_runs(root: str) -> List[str]:
    """The runs whose writer lives and has not sealed yet."""
    from .repair import open_runs

    return open_runs(root)


def seal_abandoned(root: str) -> None:
    """End every record whose writer is gone, except of boots: see `repair.seal_abandoned`."""
    from .repair import seal_abandoned

    seal_abandoned(root)
