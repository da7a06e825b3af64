"""The decisions of one attempt that are not stored yet: in a file of the journal, and in sums."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import structlog

from controlplane.metrics.families import EGRESS_DECISIONS
from workspaces.egress.decided.keeping import Pass, records
from workspaces.egress.decided.sums import HOLD_SECONDS, Line, Room, Sums, line_of
from workspaces.egress.decisions import Decision

RETRY_SECONDS = (1.0, 60.0)
"""How long a record that cannot be written to is left alone: first, and at the most."""
COMPACT_BYTES = 1024 * 1024
"""A file that is longer is written anew, with sums."""

log = structlog.get_logger(__name__)


class RecordEnded(OSError):
    """Nothing may pass any more: the record of the workspace ends."""


class Unstored:
    """The decisions of one attempt that are not stored yet."""

    def __init__(self, attempt_id: UUID, folder: Path, numbers: Iterator[int]) -> None:
        self.attempt_id = attempt_id
        self._folder = folder
        self._numbers = numbers
        self._lock = threading.Lock()
        self.storing = threading.Lock()
        self._sums = Sums()
        self._room = Room()
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

    def store(self, journal: str, *, passes: int, patient: bool) -> None:
        """Store what was decided, in so many passes at the most; raises database errors.

        Two are all there is now: the one that could not be stored, and what came since.
        """
        with self.storing:
            for _ in range(passes):
                if (frozen := self._next(journal)) is None:
                    return
                decided, path = frozen
                store(decided, patient=patient)
                path.unlink(missing_ok=True)
                self._frozen = None

    def _next(self, journal: str) -> tuple[Pass, Path] | None:
        """Return the pass that is to be stored next, which is always the same until it is."""
        with self._lock:
            if self._frozen is None and (len(self._sums) or self._missing):
                if self._file is not None:
                    os.close(self._file)
                else:
                    self._number = next(self._numbers)
                    self._path = self._folder / f"{self.attempt_id}.{self._number}"
                lines = self._sums.within(self._room)
                decided = Pass(self.attempt_id, journal, self._number, lines, self._missing)
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

    @property
    def is_due(self) -> bool:
        """Whether a pass is to be stored now."""
        now = time.monotonic()
        with self._lock:
            waits = self._frozen is not None or self._missing or self._room.has(self._sums.named)
            return self.retry_at <= now and (waits or now - self._sums.began >= HOLD_SECONDS)

    @property
    def has_failed(self) -> bool:
        """Whether it could not be stored the last time."""
        return self.retry_at > 0.0

    def stored(self) -> None:
        """Do not leave it alone any more."""
        self.retry_at, self.retry = 0.0, RETRY_SECONDS[0]

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
            return not waits and (self.settled or (not self.closed and self._room.is_full))

    def close(self) -> None:
        with self._lock:
            self.closed = True

    def miss(self) -> None:
        with self._lock:
            self._missing = True


def store(decided: Pass, *, patient: bool) -> None:
    is_stored = records().store(decided, patient=patient)
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


def _encoded(line: Line) -> bytes:
    return json.dumps(line.to_json(), separators=(",", ":")).encode() + b"\n"
