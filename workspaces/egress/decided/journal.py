"""The journal of a proxy: each decision is on the disk before it takes effect, and stored once.

A folder for each proxy that was started, with one file for each workspace and pass. A pass ends
when the one before it is stored; its file goes when its decisions are. So whatever is killed, at
any moment, what is on the disk has been stored under its number, or is stored then. What a killed
proxy has left the next one stores. Files are written before what they tell happens, which a killed
process cannot undo; a machine that loses its power may lose the last second.

Where nothing can be written nothing is allowed.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections

from controlplane.metrics.families import EGRESS_DECISIONS
from workspaces.egress.decided import serving
from workspaces.egress.decided.keeping import Pass, records
from workspaces.egress.decided.sums import Line, Sums, line_of
from workspaces.egress.decisions import Decision

PASS_SECONDS = 1.0
RETRY_SECONDS = (1.0, 60.0)
"""How long a record that cannot be written to is left alone: first, and at the most."""
LEFT_RETRY_SECONDS = 10.0
"""How long one is left alone that a killed proxy wrote to, unless it is about to end."""
MAX_FAILED = 3
"""After so many records of a killed proxy that cannot be written to a pass goes no further."""
COMPACT_BYTES = 1024 * 1024
"""A file that is longer is written anew, with sums."""
_LOCK = "lock"

log = structlog.get_logger(__name__)


class RecordEnded(OSError):
    """Nothing may pass any more: the record of the workspace ends."""


class _Kept:
    """The decisions of one attempt that are not stored yet."""

    def __init__(self, attempt_id: UUID, folder: Path, numbers: Iterator[int]) -> None:
        self.attempt_id = attempt_id
        self._folder = folder
        self._numbers = numbers
        self._lock = threading.Lock()
        self.storing = threading.Lock()
        self._sums = Sums()
        self._file: int | None = None
        self._path = folder
        self._number = 0
        self._size = 0
        self._frozen: tuple[Pass, Path] | None = None
        self._missing = False
        self.closed = False
        """Nothing begins any more; what is open still tells how it ends."""
        self.settled = False
        self.retry_at = 0.0
        self.retry = RETRY_SECONDS[0]

    def add(self, decision: Decision) -> None:
        begins = decision.allowed and decision.connections > 0
        with self._lock:
            if self.closed and begins:
                raise RecordEnded
            line = line_of(decision)
            try:
                self._write(line)
            except OSError as error:
                log.error("egress_decision_not_written", reason=error.strerror)
                if begins:
                    raise
                # Nothing passes because of it; the record says that it lacks something.
                self._missing = True
                return
            self._sums.add(line)

    def _write(self, line: Line) -> None:
        if self._file is None:
            self._number = next(self._numbers)
            self._path = self._folder / f"{self.attempt_id}.{self._number}"
            self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            self._size = 0
        if self._size > COMPACT_BYTES:
            self._compact()
        data = _encoded(line)
        try:
            if os.write(self._file, data) != len(data):
                raise OSError(28, "No space left on device")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def _compact(self) -> None:
        """Write sums in the place of what they were made of."""
        new = self._path.with_suffix(self._path.suffix + ".new")
        data = b"".join(map(_encoded, self._sums))
        descriptor = os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(28, "No space left on device")
            os.fsync(descriptor)
            new.rename(self._path)
        except OSError:
            os.close(descriptor)
            raise
        assert self._file is not None
        os.close(self._file)
        self._file, self._size = descriptor, len(data)

    def store(self, journal: str) -> bool:
        """Store all that was decided; False: it has to be tried again. Raises database errors."""
        with self.storing:
            while (frozen := self._next(journal)) is not None:
                decided, path = frozen
                _store(decided)
                path.unlink(missing_ok=True)
                self._frozen = None
            return True

    def _next(self, journal: str) -> tuple[Pass, Path] | None:
        """Return the pass that is to be stored next, which is always the same until it is."""
        with self._lock:
            if self._frozen is None and (len(self._sums) or self._missing):
                if self._file is not None:
                    os.close(self._file)
                else:
                    self._number = next(self._numbers)
                    self._path = self._folder / f"{self.attempt_id}.{self._number}"
                decided = Pass(
                    self.attempt_id, journal, self._number, list(self._sums), self._missing
                )
                self._frozen = (decided, self._path)
                self._file, self._sums, self._missing = None, Sums(), False
            return self._frozen

    def sync(self) -> None:
        """Have what waits for the database survive a loss of power."""
        with self._lock:
            descriptor = None if self._file is None else os.dup(self._file)
        if descriptor is not None:
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def wait(self) -> None:
        """Leave it alone for a while, longer each time in a row."""
        self.retry_at = time.monotonic() + self.retry
        self.retry = min(2 * self.retry, RETRY_SECONDS[1])
        with contextlib.suppress(OSError):
            self.sync()

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost if it were forgotten, but that it has ended."""
        with self._lock:
            waits = self._file is not None or self._frozen is not None or self._missing
            return not waits and (self.settled or not self.closed)

    def close(self) -> None:
        with self._lock:
            self.closed = True

    def miss(self) -> None:
        with self._lock:
            self._missing = True


class Journal:
    """The journal of this proxy; :meth:`add` may be called from any thread, and waits for the disk.

    Raises ``OSError`` when it is made where nothing can be written.
    """

    def __init__(self, folder: Path) -> None:
        self.id = uuid4().hex
        self._root = folder
        self._folder = folder / self.id
        self._folder.mkdir(mode=0o700, parents=True)
        self._held = _locked(self._folder)
        assert self._held is not None
        self._numbers = itertools.count(1)
        self._kept: dict[UUID, _Kept] = {}
        self._ended: set[UUID] = set()
        """Whose decisions are all stored, up to the end of the record: nothing comes after that."""
        self._left: dict[UUID, float] = {}
        """When what a killed proxy has left is tried again, where it could not be stored."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="egress journal")

    def __enter__(self) -> Journal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self.abandon()

    def abandon(self) -> None:
        """Leave everything as a killed proxy does, to whoever comes next."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def add(self, decision: Decision) -> None:
        """Write a decision; raises ``OSError`` when what it allows must not begin."""
        with self._lock:
            if decision.attempt_id not in self._ended:
                self._of(decision.attempt_id).add(decision)
            elif decision.allowed and decision.connections > 0:
                raise RecordEnded

    def close(self, attempt_id: UUID) -> None:
        """Allow nothing more to begin in the networks of an attempt."""
        with self._lock:
            if attempt_id not in self._ended:
                self._of(attempt_id).close()

    def settle(self, attempt_id: UUID) -> bool:
        """Store what was decided for a closed attempt, and say so; raises database errors.

        False, and not said: another proxy has more of it, or is just storing that. It is to be
        called again then.
        """
        with self._lock:
            kept = None if attempt_id in self._ended else self._of(attempt_id)
        if kept is not None:
            kept.store(self.id)
        if self._is_left(attempt_id):
            self._left.pop(attempt_id, None)
            self.recover()
            if self._is_left(attempt_id):
                return False
        serving.settled(attempt_id, self.id)
        if kept is not None:
            kept.settled = True
        return True

    def follow(self, before: str, attempt_id: UUID) -> None:
        """Serve a network after another proxy, whose journal may be gone: the record says that."""
        if before in ("", self.id) or (self._root / before).is_dir():
            return
        with self._lock:
            if attempt_id not in self._ended:
                self._of(attempt_id).miss()

    def flush(self) -> None:
        """Store what was decided; what cannot be stored now is tried again later."""
        with self._lock:
            for who in [who for who, kept in self._kept.items() if kept.is_idle]:
                if self._kept.pop(who).closed:
                    self._ended.add(who)
            all_kept = list(self._kept.values())
        for kept in all_kept:
            # One record that cannot be written to does not keep the others waiting.
            if kept.retry_at <= time.monotonic():
                self._flush(kept)

    def _flush(self, kept: _Kept) -> None:
        try:
            kept.store(self.id)
            kept.retry = RETRY_SECONDS[0]
        except (DatabaseError, InterfaceError) as error:
            log.warning(
                "egress_decisions_wait",
                attempt_id=str(kept.attempt_id),
                reason=type(error).__name__,
            )
            close_old_connections()
            kept.wait()
        except Exception:
            log.exception("egress_decisions_not_stored", attempt_id=str(kept.attempt_id))
            kept.wait()

    def recover(self) -> None:
        """Store what proxies have left that are not there any more; raises database errors.

        A record that cannot be written to keeps no other waiting for long: it is tried again later.
        """
        for left in sorted(self._root.iterdir()):
            if left.name == self.id or not left.is_dir():
                continue
            held = _locked(left)
            if held is None:  # another proxy is alive
                continue
            try:
                waiting = self._store_left(left)
                serving.take_over(left.name, self.id, but=waiting)
                if not waiting:
                    shutil.rmtree(left)
            finally:
                os.close(held)

    def _store_left(self, folder: Path) -> set[UUID]:
        """Store what a journal has; return the attempts of which something is still there."""
        waiting: set[UUID] = set()
        failed = 0
        for decided, path in _left_in(folder):
            who = decided.attempt_id
            if who in waiting or self._left.get(who, 0.0) > time.monotonic():
                waiting.add(who)
                continue
            try:
                _store(decided)
            except (DatabaseError, InterfaceError) as error:
                log.warning(
                    "egress_decisions_wait", attempt_id=str(who), reason=type(error).__name__
                )
                close_old_connections()
                self._left[who] = time.monotonic() + LEFT_RETRY_SECONDS
                waiting.add(who)
                failed += 1
                if failed == MAX_FAILED:
                    raise  # it may be the database; the others come in the next pass
            else:
                self._left.pop(who, None)
                path.unlink()
        return waiting

    def _is_left(self, attempt_id: UUID) -> bool:
        """Whether a journal of another proxy has decisions of an attempt."""
        passes = self._root.glob(f"*/{attempt_id}.*")
        return any(path.suffix[1:].isdigit() and path.parent != self._folder for path in passes)

    def _of(self, attempt_id: UUID) -> _Kept:
        kept = self._kept.get(attempt_id)
        if kept is None:
            kept = self._kept[attempt_id] = _Kept(attempt_id, self._folder, self._numbers)
        return kept

    def _run(self) -> None:
        try:
            while not self._stopped.wait(PASS_SECONDS):
                self._guarded()
            self._guarded()
        finally:
            close_old_connections()

    def _guarded(self) -> None:
        close_old_connections()
        try:
            self.flush()
            self.recover()
        except (DatabaseError, InterfaceError, OSError) as error:
            log.warning("egress_journals_wait", reason=type(error).__name__)
            close_old_connections()
        except Exception:
            log.exception("egress_decisions_not_stored")


def _store(decided: Pass) -> None:
    is_stored = records().store(decided)
    decisions = sum(line.total.connections for line in decided.lines)
    EGRESS_DECISIONS.count(decisions, outcome="stored" if is_stored else "lost")
    if decided.missing:
        EGRESS_DECISIONS.count(outcome="lost")  # one at least
    if not is_stored:
        log.warning(
            "egress_decisions_after_the_end",
            attempt_id=str(decided.attempt_id),
            decisions=decisions,
        )


def _locked(folder: Path) -> int | None:
    """Return a lock on a journal; None while its proxy is alive."""
    descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _left_in(folder: Path) -> list[tuple[Pass, Path]]:
    """Return what a journal holds, in the order in which it was decided."""
    found = []
    for path in folder.iterdir():
        attempt, _, number = path.name.partition(".")
        if number.isdigit():
            found.append((int(number), UUID(attempt), path))
    return [
        (_read(attempt, folder.name, number, path), path) for number, attempt, path in sorted(found)
    ]


def _read(attempt_id: UUID, journal: str, number: int, path: Path) -> Pass:
    # What stands behind the last end of a line was being written: it has not taken effect.
    *whole, _ = path.read_bytes().split(b"\n")
    sums, missing = Sums(), False
    for line in whole:
        try:
            sums.add(Line.from_json(attempt_id, json.loads(line)))
        except (KeyError, TypeError, ValueError, AttributeError):
            missing = True
    return Pass(attempt_id, journal, number, list(sums), missing)


def _encoded(line: Line) -> bytes:
    return json.dumps(line.to_json(), separators=(",", ":")).encode() + b"\n"
