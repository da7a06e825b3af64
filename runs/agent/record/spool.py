"""The writer of a run's spool: the one place where an event gets its sequence.

The first event after a pause is written to the page cache at once, those behind it are gathered for
a few milliseconds. It is fsynced every 250 ms; that is waited for only where it is said.
Nothing is freed but what the control plane has acknowledged, mostly by `tail`. When the spool is
full, or the disk, events of I/O are refused; the events of a run's life always fit, thanks to a
reserve.
"""

from __future__ import annotations

import errno
import json
import os
import time
import zlib
from typing import Any, Dict, List, Optional

from .acks import free, read_acknowledged
from .frames import HEADER, PREFIX, Confidence, Kind, Method, decode
from .recovery import read_left
from .segments import DISK_FULL, SpoolDamaged, open_folder
from .spool_files import Reserve, SegmentFiles
from .spool_folder import (
    DiskFull,
    SpoolBusy,
    SpoolExists,
    SpoolFailed,
    SpoolLimits,
    SpoolMissing,
    discard,
    folder_of,
    identity_of,
    limits_of,
    make_durable,
    new_folder,
    put_in_place,
    take_lock,
)
from .summary import Summary

__all__ = [
    "SpoolBusy",
    "SpoolExists",
    "SpoolFailed",
    "SpoolLimits",
    "SpoolMissing",
    "SpoolWriter",
]

FLUSH_SECONDS = 0.005
SYNC_SECONDS = 0.25
SYNC_BYTES = 1 << 20
"""The disk is asked to take what was written after so long, or so much: then little is left to wait
for when a segment is full."""
DROPPABLE = frozenset(
    (
        Kind.IO_CHUNK,
        Kind.FILE_CHANGE,
        Kind.FILE_DIFF_ENTRY,
        Kind.NETWORK_SOURCE_OBSERVED,
        # Whoever asks for it is refused then, so nothing is missing from the record.
        Kind.FILE_ACCESSED,
    )
)

_BATCH_BYTES = 256 * 1024
_RESERVE_BYTES = 1024 * 1024
# Room for one more chunk: what `room` waits for after a refusal.
_CHUNK_BYTES = 64 * 1024
_LOOK_SECONDS = 0.01
_LOOK_AT_DISK_SECONDS = 0.1
_LOOK_AT_SYNC_SECONDS = 0.02


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
        fresh, identity = new_folder(root, run_id, limits, mode)
        try:
            writer = cls._create(fresh, identity, limits)
        except (OSError, SpoolFailed) as error:
            discard(fresh)
            why = error.strerror if isinstance(error, OSError) else error
            raise SpoolFailed(f"the spool cannot be created: {why}") from error
        try:
            put_in_place(root, run_id, fresh)
        except BaseException:
            writer._let_go()
            raise
        return writer

    @classmethod
    def _create(cls, path: str, identity: Dict[str, Any], limits: SpoolLimits) -> SpoolWriter:
        directory = open_folder(path)
        writer = cls(directory, take_lock(directory), identity, limits)
        try:
            writer._files.begin(1, durably=False)
            if not writer._reserve.take():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            make_durable(directory)
        except (OSError, SpoolFailed):
            writer._let_go()
            raise
        return writer

    @classmethod
    def reopen(
        cls, root: str, run_id: str, limits: Optional[SpoolLimits] = None, *, timeout: float = 1.0
    ) -> SpoolWriter:
        """Go on with a spool whose writer has died; a torn tail is cut.

        A sequence that was acknowledged is never given out again, not even when an outage of the
        disk took its event: the spool goes on behind it, and an event tells that it did.

        `limits`: None for those it was created with. `timeout`: seconds to wait for the lock.

        Raises SpoolMissing, SpoolBusy, DiskFull, and SpoolFailed when it is damaged elsewhere: then
        nothing was changed.
        """
        try:
            directory = open_folder(folder_of(root, run_id))
        except FileNotFoundError as error:
            raise SpoolMissing(f"the run {run_id} has no spool") from error
        try:
            lock = take_lock(directory, timeout=timeout)
        except BaseException:
            os.close(directory)
            raise
        try:
            identity = identity_of(directory)
        except BaseException:
            os.close(lock)
            os.close(directory)
            raise
        writer = cls(directory, lock, identity, limits or limits_of(identity))
        try:
            writer._recover()
        except SpoolDamaged as error:
            writer._let_go()
            raise SpoolFailed(f"the spool is damaged: {error}") from error
        except OSError as error:
            writer._let_go()
            failed = DiskFull if error.errno in DISK_FULL else SpoolFailed
            raise failed(f"the spool cannot be opened: {error.strerror}") from error
        except SpoolFailed:
            writer._let_go()
            raise
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
        self._reserve = Reserve(directory, reserve)
        self._files = SegmentFiles(directory)
        self._io_limit = limits.total_bytes - reserve
        # Several segments fit, so that some can be freed while one is being written.
        self._segment_bytes = max(1, min(limits.segment_bytes, limits.total_bytes // 4))
        self._batch_limit = min(_BATCH_BYTES, self._segment_bytes)
        self._batch: List[bytes] = []
        self._batch_bytes = 0
        self._flush_at: Optional[float] = None
        self._gathers_until = 0.0
        self._sync_at: Optional[float] = None
        self._unsynced = 0
        self._synced_at: Optional[float] = None
        """When to look whether the sync under way has ended."""
        self._look_at = 0.0
        self._used = 0
        """Bytes of all segments and of the batch."""
        self._full = False
        self._disk_full = False
        self._ending = False

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
        always: bool = False,
    ) -> bool:
        """Give an event its sequence; it is written soon after.

        False, and nothing changed, when it is one of I/O, files or network and there is no room,
        unless it has to find some (`always`).
        Raises SpoolFailed when the file cannot be written for another reason than a full disk.
        """
        if self.sealed or self._directory < 0:
            raise SpoolFailed("the spool is sealed or closed")
        size = PREFIX.size + HEADER.size + len(meta) + len(body)
        if (
            (self._used + size > self._io_limit or self._full or self._disk_full)
            and kind in DROPPABLE
            and not always
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
            # At once after a pause: then whoever looks on waits for it.
            self._flush_at = max(time.monotonic(), self._gathers_until)
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
            self._gathers_until = time.monotonic() + FLUSH_SECONDS
            if not self._write_batch() and not self._reserve.release():
                self._flush_at = time.monotonic() + _LOOK_AT_DISK_SECONDS
                return
        # Nothing comes behind the end; an empty segment there would hide that it was written.
        if self._files.size >= self._segment_bytes and not self._ending:
            self._roll()

    def sync(self) -> None:
        """Flush, and wait until the disk has it."""
        self.flush()
        self._sync_at = self._synced_at = None
        self._unsynced = 0
        self._files.sync()

    def deadline(self) -> Optional[float]:
        """When `tick` must be called next, in monotonic seconds; None: nothing is due."""
        due = self._flush_at
        for moment in (self._sync_at, self._synced_at):
            if moment is not None and (due is None or moment < due):
                due = moment
        return due

    def tick(self) -> None:
        """Write what is due, and have the disk take it; raises SpoolFailed when it did not."""
        due = self.deadline()
        if due is None:
            return
        now = time.monotonic()
        if now < due:
            return
        if self._flush_at is not None and now >= self._flush_at:
            self.flush()
        if self._sync_at is not None and now >= self._sync_at:
            self.flush()
            if self._files.begin_sync():
                self._sync_at, self._unsynced = None, 0
            else:
                self._sync_at = now + _LOOK_AT_SYNC_SECONDS
            self._synced_at = now + _LOOK_AT_SYNC_SECONDS
        elif self._synced_at is not None and now >= self._synced_at:
            self._synced_at = now + _LOOK_AT_SYNC_SECONDS if self._files.syncing() else None

    def seal(self, meta: Dict[str, Any]) -> None:
        """End the record: its last event is durable when this returns, and the writer closed.

        `events` is filled in. Raises DiskFull when the disk has no room for the end; then the
        spool is unsealed, as after a crash.
        """
        whole = {**meta, "events": self.last_sequence + 1}
        content = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        self._ending = True
        try:
            self.append(Kind.RECORD_SEALED, meta=content)
            self.sync()
            if self._batch:
                raise DiskFull("the disk has no room for the end of the record")
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
                self._reserve.release()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._files.close()
        os.close(self._directory)
        os.close(self._lock)
        self._directory = self._lock = -1

    # Room

    def _find_room(self, size: int) -> bool:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._used -= self._files.forget_freed()
            if not self._fits(size):
                self._let_go_of_active()
            if self._disk_full:
                self._look_at = now + _LOOK_AT_DISK_SECONDS
                # What waits comes before the reserve. When the flush only found no room for a new
                # segment, it has noted that too: no reason to refuse anything once both fit.
                self.flush()
                self._disk_full = bool(self._batch) or not self._reserve.take()
        if self._disk_full:
            return False
        fits = self._fits(size)
        self._full = not (fits or self._fits(min(size, _CHUNK_BYTES)))
        return fits

    def _fits(self, size: int) -> bool:
        # Alone in the spool any event fits: otherwise one that is too large would wait for ever.
        return self._used + size <= self._io_limit or not self._used

    def _let_go_of_active(self) -> None:
        """Begin a new segment, so that all that is stored can be freed."""
        self.flush()
        worth_it = not self._files.closed or self._files.size * 4 >= self._segment_bytes
        if worth_it and not self._batch:
            self._roll()
            # Nobody acknowledges a second time what was acknowledged while it was written to.
            free(self._directory, read_acknowledged(self._directory))
            self._used -= self._files.forget_freed()

    # What lies on the disk

    def _roll(self) -> None:
        if self._files.size:
            self._sync_at = self._synced_at = None
            self._unsynced = 0
            if not self._files.roll(self.last_sequence + 1, self.summary.stored()):
                self._disk_full = True

    def _write_batch(self) -> bool:
        """Write the batch; False when the disk is full, and the rest of it is kept."""
        before = self._files.size
        written = self._files.write(self._batch)
        size = self._files.size - before
        self._batch = self._batch[written:]
        self._batch_bytes -= size
        self._unsynced += size
        if self._unsynced >= SYNC_BYTES and self._synced_at is None:
            self._sync_at = time.monotonic()
        elif size and self._sync_at is None:
            self._sync_at = time.monotonic() + SYNC_SECONDS
        if self._batch:
            self._disk_full = True
        return not self._batch

    def _recover(self) -> None:
        left = read_left(self._directory)
        self.last_sequence, self.sealed = left.last_sequence, left.sealed
        self.summary = left.summary
        self._used = self._files.resume(left.segment, left.size)
        if left.missing:
            # Nothing may follow what is stored in its segment: there are sequences between.
            if not self._files.roll(self.last_sequence + 1, self.summary.stored()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            free(self._directory, self.last_sequence)
        if self.sealed:
            return
        self._disk_full = not self._reserve.take()
        if left.missing:
            self._tell_outage()

    def _tell_outage(self) -> None:
        # All sequences up to here are committed; what was written behind them nobody can tell.
        reason = "the disk lost what was written last: what was not committed by then is not known"
        for state in ("off", "on"):
            meta = {"source": "io", "state": state, "reason": reason}
            self.append(Kind.COVERAGE_CHANGED, meta=json.dumps(meta).encode("ascii"))
        self.sync()
