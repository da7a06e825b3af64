"""Checking what was derived from the log: processes and changes have to be what its events tell."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from runs.agent.record.frames import Kind
from runs.models import RunChange, RunProcess
from runs.record.checking import Fault
from runs.record.export_format import EventRow, event_of
from runs.record.ingest.derived import Derived

_START = ("leader", "pid", "argv", "cwd", "name", "streams", "started_us")
_UNKNOWN_START: tuple[Any, ...] = (False, None, [], "", "", [], None)
_EXIT = ("ended_us", "exit_code", "exit_signal", "exit_reason")
_UNKNOWN_EXIT: tuple[Any, ...] = (None, None, "", "")
_CHANGE = (
    "path",
    "old_path",
    "change",
    "binary",
    "added_lines",
    "removed_lines",
    "size_before",
    "size_after",
    "mode_before",
    "mode_after",
    "patch",
    "patch_truncated",
)
_KINDS = (Kind.PROCESS_STARTED, Kind.PROCESS_EXITED, Kind.FILE_DIFF_ENTRY)


class Told:
    """What the events of a record tell; keeps a digest of each, for memory that stays small.

    Parents are named by the numbers of their source, so they can be told where there is one source.
    """

    def __init__(self) -> None:
        self._parents: dict[int, int | None] = {}
        self._starts: dict[int, tuple[int, bytes]] = {}
        self._exits: dict[int, tuple[int, bytes]] = {}
        self._changes: dict[int, tuple[int, bytes]] = {}

    def take(self, row: EventRow) -> None:
        """Take notice of the next event. As in the tables, what is told first counts."""
        if row.kind not in _KINDS:
            return
        derived = Derived(0, {}, {})
        derived.take(event_of(row))
        for number, (parent, *values) in derived.starts.items():
            if number not in self._starts:
                self._parents[number] = parent
                self._starts[number] = (row.sequence, _digest(values))
        for kept, told in ((self._exits, derived.exits), (self._changes, derived.changes)):
            for number, ending in told.items():
                kept.setdefault(number, (row.sequence, _digest(ending)))

    def compare(self, run_number: int, *, parents: bool) -> None:
        """Hold the rows against what was told; raises ``Fault`` with the event that tells it."""
        no_start, no_end = (0, _digest(_UNKNOWN_START)), (0, _digest(_UNKNOWN_EXIT))
        for process in RunProcess.objects.filter(run_number=run_number).iterator():
            number = process.process_number
            if number not in self._starts and number not in self._exits:
                raise Fault(None, f"process {number} is in no event")
            start = self._starts.pop(number, no_start)
            end = self._exits.pop(number, no_end)
            if _digest(getattr(process, name) for name in _START) != start[1] or (
                parents and process.parent_number != self._parents.get(number)
            ):
                raise Fault(start[0] or None, f"process {number} is not listed as it tells")
            if _digest(getattr(process, name) for name in _EXIT) != end[1]:
                raise Fault(end[0] or None, f"the end of process {number} is not as it tells")
        self._none_left("process", self._starts, self._exits)
        for change in RunChange.objects.filter(run_number=run_number).iterator():
            told = self._changes.pop(change.position, None)
            if told is None:
                raise Fault(None, f"change {change.position} is in no event")
            if _digest(getattr(change, name) for name in _CHANGE) != told[1]:
                raise Fault(told[0], f"change {change.position} is not listed as it tells")
        self._none_left("change", self._changes)

    @staticmethod
    def _none_left(what: str, *kept: dict[int, tuple[int, bytes]]) -> None:
        for each in kept:
            for number, (sequence, _) in each.items():
                raise Fault(sequence, f"tells of {what} {number}, which is not listed")


def _digest(values: Iterable[Any]) -> bytes:
    plain = [bytes(value) if isinstance(value, memoryview) else value for value in values]
    return hashlib.sha256(repr(plain).encode()).digest()
