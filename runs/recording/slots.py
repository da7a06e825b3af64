"""The runs that a worker holds, and how many more it has room for.

Each mode of run has slots of its own: the boot run of a live workspace and an open session hold
theirs for hours, and a command that somebody waits for must not wait for one of them to end.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.work.leases import Fence
from controlplane.work.models import SlotUsage
from runs.models import Run
from runs.recording.control import RunControl

REMEMBERED = 1_000
"""So many refused runs are claimed as soon as a slot is free; a sweeper finds the rest."""


@dataclass(frozen=True, slots=True)
class Held:
    """A run that a recorder of this worker has."""

    fence: Fence
    control: RunControl


class Slots:
    """Slots for runs by their mode. Any thread may ask."""

    def __init__(self, capacity: Mapping[Run.Mode, int]) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._held: dict[uuid.UUID, Held] = {}
        self._acquired: dict[Run.Mode, set[uuid.UUID]] = {mode: set() for mode in capacity}
        self._refused: dict[Run.Mode, dict[uuid.UUID, None]] = {mode: {} for mode in capacity}

    @property
    def modes(self) -> list[Run.Mode]:
        """The modes that have slots."""
        return list(self._capacity)

    def acquire(self, run_id: uuid.UUID, mode: Run.Mode) -> bool:
        """Keep a slot for a run until it is released; False: none is free, or the run has one.

        A run that is refused for want of a slot is remembered for :meth:`next_refused`.
        """
        with self._lock:
            acquired = self._acquired[mode]
            if run_id in acquired:
                return False
            if len(acquired) >= self._capacity[mode]:
                self._remember(run_id, mode)
                return False
            acquired.add(run_id)
            self._refused[mode].pop(run_id, None)
        return True

    def _remember(self, run_id: uuid.UUID, mode: Run.Mode) -> None:
        refused = self._refused[mode]
        if len(refused) < REMEMBERED:
            refused[run_id] = None

    def next_refused(self, mode: Run.Mode) -> uuid.UUID | None:
        """Return and forget the run that was refused first, once a slot is free; else None."""
        with self._lock:
            refused = self._refused[mode]
            if not refused or len(self._acquired[mode]) >= self._capacity[mode]:
                return None
            run_id = next(iter(refused))
            del refused[run_id]
        return run_id

    def hold(self, run_id: uuid.UUID, held: Held) -> None:
        """Give the slot of a run to its recorder."""
        with self._lock:
            self._held[run_id] = held

    def release(self, run_id: uuid.UUID) -> None:
        """Free the slot of a run."""
        with self._lock:
            self._held.pop(run_id, None)
            for acquired in self._acquired.values():
                acquired.discard(run_id)

    def holding(self) -> list[Held]:
        """Return what recorders are at."""
        with self._lock:
            return list(self._held.values())

    def of(self, mode: Run.Mode) -> tuple[set[uuid.UUID], int]:
        """Return the runs of a mode that have slots, and how many are free."""
        with self._lock:
            acquired = set(self._acquired[mode])
        return acquired, self._capacity[mode] - len(acquired)

    def usage(self) -> dict[str, SlotUsage]:
        """Return by mode how many slots there are and how many are in use."""
        with self._lock:
            return {
                mode.value: SlotUsage(capacity=capacity, in_use=len(self._acquired[mode]))
                for mode, capacity in self._capacity.items()
            }

    def all(self) -> set[uuid.UUID]:
        """Return the runs that have slots."""
        with self._lock:
            return set().union(*self._acquired.values())
