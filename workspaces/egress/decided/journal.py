"""The journal of a proxy: each decision is on the disk before it takes effect, and stored once.

A folder for each proxy that was started, with one file for each workspace and pass. A pass ends
when the one before it is stored, and later where a workspace has had too many named; its file goes
when its decisions are. So whatever is killed, at
any moment, what is on the disk has been stored under its number, or is stored then. What a killed
proxy has left the next one stores. Files are written before what they tell happens, which a killed
process cannot undo; a machine that loses its power may lose the last second.

Where nothing can be written nothing is allowed.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import threading
import time
from pathlib import Path
from uuid import UUID, uuid4

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections, connections
from psycopg.errors import LockNotAvailable

from workspaces.egress.decided import serving
from workspaces.egress.decided.keeping import Pass
from workspaces.egress.decided.sums import Line, Sums
from workspaces.egress.decided.unstored import RecordEnded, Unstored, store
from workspaces.egress.decisions import Decision

PASS_SECONDS = 1.0
LEFT_RETRY_SECONDS = 10.0
"""How long one is left alone that a killed proxy wrote to, unless it is about to end."""
MAX_FAILED = 3
"""After so many records that cannot be written to a pass over all of them goes no further."""
_LOCK = "lock"

log = structlog.get_logger(__name__)


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
        self._kept: dict[UUID, Unstored] = {}
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

    def settle(self, attempt_id: UUID, *, patient: bool = True) -> bool:
        """Store what was decided for a closed attempt, and say so; raises database errors.

        False, and not said: another proxy has more of it, or is just storing that. It is to be
        called again then. ``patient`` is that of ``keeping.Records.store``.
        """
        with self._lock:
            kept = None if attempt_id in self._ended else self._of(attempt_id)
        if kept is not None:
            kept.store(self.id, passes=2, patient=patient)
        if self._is_left(attempt_id):
            self._left.pop(attempt_id, None)
            self.recover(attempt_id)
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

    def flush(self, *, all_due: bool = False) -> None:
        """Store what was decided and is due; what cannot be stored now is tried again later."""
        with self._lock:
            for who in [who for who, kept in self._kept.items() if kept.is_idle]:
                if self._kept.pop(who).closed:
                    self._ended.add(who)
            all_kept = list(self._kept.values())
        failed = 0
        # Records that cannot be written to keep no others waiting: they come last.
        for kept in sorted(all_kept, key=lambda kept: kept.has_failed):
            if kept.is_due or all_due:
                failed += not self._flush(kept, passes=2 if all_due else 1)
                if failed == MAX_FAILED:
                    return

    def _flush(self, kept: Unstored, passes: int) -> bool:
        """Return whether it was stored, or costs the others no time."""
        patient = kept.has_failed
        try:
            kept.store(self.id, passes=passes, patient=patient)
            kept.stored()
            return True
        except (DatabaseError, InterfaceError) as error:
            if _is_held(error) and not patient:
                kept.wait()
                return True
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
        return False

    def recover(self, only: UUID | None = None) -> None:
        """Store what proxies have left that are not there any more; raises database errors.

        A record that cannot be written to keeps no other waiting for long: it is tried again later.
        With ``only`` it is one attempt's, and nothing else changes.
        """
        for left in sorted(self._root.iterdir()):
            if left.name == self.id or not left.is_dir():
                continue
            held = _locked(left)
            if held is None:  # another proxy is alive
                continue
            try:
                waiting = self._store_left(left, only)
                if only is not None:
                    continue
                serving.take_over(left.name, self.id, but=waiting)
                if not waiting:
                    shutil.rmtree(left)
            finally:
                os.close(held)

    def _store_left(self, folder: Path, only: UUID | None) -> set[UUID]:
        """Store what a journal has; return the attempts of which something is still there."""
        waiting: set[UUID] = set()
        failed = 0
        found = _left_in(folder, only)
        # Records that cannot be written to keep no others waiting: they come last.
        for decided, path in sorted(found, key=lambda each: each[0].attempt_id in self._left):
            who = decided.attempt_id
            retry_at = self._left.get(who)
            if who in waiting or failed == MAX_FAILED or (retry_at or 0.0) > time.monotonic():
                waiting.add(who)
                continue
            patient = only is not None or retry_at is not None
            try:
                store(decided, patient=patient)
            except (DatabaseError, InterfaceError) as error:
                log.warning(
                    "egress_decisions_wait", attempt_id=str(who), reason=type(error).__name__
                )
                close_old_connections()
                self._left[who] = time.monotonic() + LEFT_RETRY_SECONDS
                waiting.add(who)
                failed += patient or not _is_held(error)
            else:
                self._left.pop(who, None)
                path.unlink()
        return waiting

    def _is_left(self, attempt_id: UUID) -> bool:
        """Whether a journal of another proxy has decisions of an attempt."""
        passes = self._root.glob(f"*/{attempt_id}.*")
        return any(path.suffix[1:].isdigit() and path.parent != self._folder for path in passes)

    def _of(self, attempt_id: UUID) -> Unstored:
        kept = self._kept.get(attempt_id)
        if kept is None:
            kept = self._kept[attempt_id] = Unstored(attempt_id, self._folder, self._numbers)
        return kept

    def _run(self) -> None:
        try:
            while not self._stopped.wait(PASS_SECONDS):
                self._guarded()
            self._guarded(all_due=True)
        finally:
            connections.close_all()

    def _guarded(self, *, all_due: bool = False) -> None:
        close_old_connections()
        try:
            self.flush(all_due=all_due)
            self.recover()
        except (DatabaseError, InterfaceError, OSError) as error:
            log.warning("egress_journals_wait", reason=type(error).__name__)
        except Exception:
            log.exception("egress_decisions_not_stored")


def _is_held(error: Exception) -> bool:
    """Tell whether somebody else writes to the record, so that it was only waited for."""
    return isinstance(error.__cause__, LockNotAvailable)


def _locked(folder: Path) -> int | None:
    """Return a lock on a journal; None while its proxy is alive."""
    descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _left_in(folder: Path, only: UUID | None) -> list[tuple[Pass, Path]]:
    """Return what a journal holds, of one attempt only if need be, in the order it was decided."""
    found = []
    for path in folder.iterdir():
        attempt, _, number = path.name.partition(".")
        if number.isdigit() and only in (None, UUID(attempt)):
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
