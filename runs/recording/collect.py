"""Reading spools out of a container without its agent: it has ended, or is about to be removed.

Everything in the container may have been forged by the workspace. So nothing in it says where to
look or whose record it is: the runs come from the database, names and sizes are held against what a
spool looks like, and nothing is written to a disk here.
"""

from __future__ import annotations

import json
import re
import tarfile
import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import IO, cast

import structlog

from controlplane.database.retries import retry_database
from runs.agent.record.frames import HEADER, FrameError, Kind, next_frame
from runs.models import Run
from runs.record import egress_endings, store
from workspaces.runtimes.base import FileReader, LaunchError, RuntimeAdapter

log = structlog.get_logger(__name__)

RUNS_DIRECTORY = "/var/lib/svc/runs"
IDENTITY_NAME = "spool.json"
DRAIN_SECONDS = 60.0
DATABASE_SECONDS = 30.0
READ_BYTES = 1024 * 1024
MAX_IDENTITY_BYTES = 64 * 1024
MAX_SPOOL_BYTES = 4 * 1024**3
"""No spool is larger; what is more comes from a workspace that wants to keep us busy."""
MAX_FOLDER_BYTES = MAX_SPOOL_BYTES + 64 * 1024**2
"""A spool, and what its archive and the files beside its segments add."""

MAX_POSTPONED = 65_536
"""So many segments that come before their turn are read later: more than a spool has."""

_SEGMENT = re.compile(r"\d{20}\.seg")


def drain_container(
    adapter: RuntimeAdapter,
    boot_run_id: uuid.UUID,
    *,
    only: uuid.UUID | None = None,
    seconds: float = DRAIN_SECONDS,
) -> None:
    """Store everything that the container of a boot run holds of records that are still open.

    ``only`` names the run whose record it is to be; without it, all of them are. Safe beside a
    recorder and after one: what is stored already is not stored again. It ends no record that its
    spool does not end. Raises ``LaunchError`` and database errors.
    """
    read = partial(adapter.read_files, boot_run_id)
    drain(read, boot_run_id, only=only, seconds=seconds)


def drain(
    read: FileReader,
    boot_run_id: uuid.UUID,
    *,
    only: uuid.UUID | None = None,
    seconds: float = DRAIN_SECONDS,
) -> None:
    """Do what :func:`drain_container` does, for the container that ``read`` reads from."""
    deadline = time.monotonic() + seconds
    wanted = Run.objects.open().filter(attempt__run_id=boot_run_id, recorded=True)
    if only is not None:
        wanted = wanted.filter(pk=only)
    runs = retry_database(lambda: list(wanted.all()), timeout=DATABASE_SECONDS)
    # The boot run first: it is the one that the container is removed with.
    for run in sorted(runs, key=lambda run: (run.mode != Run.Mode.BOOT, run.number)):
        if time.monotonic() > deadline:
            log.warning("drain_out_of_time", boot_run_id=str(boot_run_id))
            return
        spool_id = _spool_id(read, run, deadline)
        if spool_id is not None:
            _Drain(run, spool_id, deadline).store_all(read)


def _spool_id(read: FileReader, run: Run, deadline: float) -> str | None:
    """Return whose spool the run's folder holds; None when there is none to be read."""
    with read(f"{RUNS_DIRECTORY}/{run.pk}/{IDENTITY_NAME}") as chunks:
        if chunks is None:
            return None
        for _, file in _files(_bounded(chunks, deadline)):
            try:
                told = json.loads(file.read(MAX_IDENTITY_BYTES))
                return str(uuid.UUID(told["spoolId"]))
            except tarfile.TarError as exc:
                log.info("container_archive_cut_off", reason=str(exc))
                return None
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                log.warning("spool_without_identity", run_id=str(run.pk))
                return None
    return None


class _Drain:
    """Stores what one spool holds behind what is stored of it."""

    def __init__(self, run: Run, spool_id: str, deadline: float) -> None:
        self._run = run
        self._spool_id = spool_id
        self._deadline = deadline
        self._last = 0
        self._taken = 0
        """The last sequence that is stored, or will be with the batch."""
        self._batch: list[bytes] = []
        self._size = 0
        self._left = MAX_SPOOL_BYTES
        self._stored = 0

    def store_all(self, read: FileReader) -> None:
        number, spool_id = self._run.number, self._spool_id
        try:
            self._last = self._taken = retry_database(
                lambda: store.open_source(number, spool_id), timeout=DATABASE_SECONDS
            )
            folder = f"{RUNS_DIRECTORY}/{self._run.pk}"
            try:
                for name in sorted(self._store_in_turn(read, folder)):
                    if not self._over():
                        self._store_one(read, folder, name)
            except LaunchError:
                self._flush()  # what has come is sound
                raise
            self._flush()
        except store.SourceRefused as exc:
            detail = str(exc)
            self._settle()
            retry_database(
                lambda: store.close_early(number, reason="source-refused", detail=detail),
                timeout=DATABASE_SECONDS,
            )
        except store.StoreError as exc:
            # Another source has followed this one, or the record has ended: it says so itself.
            log.info("spool_not_drained", run_id=str(self._run.pk), reason=type(exc).__name__)
        if self._stored:
            log.info("spool_drained", run_id=str(self._run.pk), events=self._stored)

    def _store_in_turn(self, read: FileReader, folder: str) -> set[str]:
        """Store the segments that follow what is stored; return those that came before their turn.

        An archive has its files in any order, and may be too large to be kept.
        """
        postponed: set[str] = set()
        with read(folder) as chunks:
            for name, file in _files(_bounded(chunks or iter(()), self._deadline)):
                if not _SEGMENT.fullmatch(name) or self._over():
                    continue
                if int(name[:20]) <= self._taken + 1:
                    self._store_segment(file)
                elif len(postponed) < MAX_POSTPONED:
                    postponed.add(name)
        return postponed

    def _store_one(self, read: FileReader, folder: str, segment: str) -> None:
        with read(f"{folder}/{segment}") as chunks:
            for name, file in _files(_bounded(chunks or iter(()), self._deadline)):
                if name == segment:
                    self._store_segment(file)

    def _over(self) -> bool:
        return self._left <= 0 or time.monotonic() > self._deadline

    def _store_segment(self, file: IO[bytes]) -> None:
        """Store the frames of one segment up to its end, or up to where it is torn or damaged."""
        buffer = b""
        while not self._over():
            try:
                data = file.read(READ_BYTES)
            except tarfile.TarError:  # cut off; the archive's own end says so
                return
            if not data:
                return
            self._left -= len(data)
            buffer += data
            start = 0
            try:
                while (frame := next_frame(buffer, start)) is not None:
                    content, start = frame
                    self._take(content)
            except FrameError:
                return
            buffer = buffer[start:]

    def _take(self, content: bytes) -> None:
        if len(content) < HEADER.size or int.from_bytes(content[:8], "big") <= self._last:
            return
        self._taken = max(self._taken, int.from_bytes(content[:8], "big"))
        self._batch.append(content)
        self._size += len(content)
        if self._size >= store.BATCH_BYTES or len(self._batch) >= store.BATCH_EVENTS:
            self._flush()

    def _settle(self) -> None:
        retry_database(lambda: egress_endings.settle(self._run), timeout=DATABASE_SECONDS)

    def _flush(self) -> None:
        batch, self._batch, self._size = self._batch, [], 0
        if batch:
            # Anywhere in it: what comes behind the end must not hide what was reached before.
            if self._run.mode == Run.Mode.BOOT and any(map(_is_end, batch)):
                self._settle()
            appended = retry_database(
                lambda: store.append(self._run.number, self._spool_id, batch),
                timeout=DATABASE_SECONDS,
            )
            self._last = appended.last_sequence
            self._stored += appended.events


def _is_end(content: bytes) -> bool:
    return bool(HEADER.unpack_from(content)[3] == Kind.RECORD_SEALED)


def _bounded(chunks: Iterator[bytes], deadline: float) -> Iterator[bytes]:
    """Yield the chunks until ``deadline``, and no more than a folder with a whole spool takes.

    Also what is passed over has to be read: a workspace may have put an endless file there.
    """
    left = MAX_FOLDER_BYTES
    for chunk in chunks:
        if left <= 0 or time.monotonic() > deadline:
            log.warning("container_archive_given_up", bytes_left=max(left, 0))
            return
        left -= len(chunk)
        yield chunk


def _files(chunks: Iterator[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the regular files of a tar stream with their last names, as far as it is sound."""
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", _Stream(chunks)), mode="r|") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isreg() else None
                if file is not None:
                    yield member.name.rsplit("/", 1)[-1], file
                # The archive remembers all its members; a workspace may have made many.
                archive.members = []  # type: ignore[attr-defined]
    except tarfile.TarError as exc:
        log.info("container_archive_cut_off", reason=str(exc))


class _Stream:
    """The chunks of an iterator as a file that can be read once."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, fewer only at the end; raise ``ReadError`` behind it.

        Nothing, as files say it, would not do: who skips a member reads until it is over.
        """
        pieces, missing = [self._rest], size - len(self._rest)
        while missing > 0:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            pieces.append(chunk)
            missing -= len(chunk)
        data = b"".join(pieces)
        if not data and size > 0:
            raise tarfile.ReadError("the archive was cut off")
        self._rest = data[size:]
        return data[:size]
