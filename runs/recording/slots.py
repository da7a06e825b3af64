"""The runs that a worker holds, and how many more it has room for.

Sessions have slots of their own: hundreds of them may be open and idle for hours, and a command
that somebody waits for must not wait for one of them to end.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.work.leases import Fence
from runs.models import Run
from runs.recording.recorder import RunControl

SESSIONS = frozenset({Run.Mode.INTERACTIVE})
RUNS = frozenset({Run.Mode.ONE_SHOT, Run.Mode.BOOT})


@dataclass(frozen=True, slots=True)
class Held:
    """A run that a recorder of this worker has."""

    fence: Fence
    control: RunControl


class Slots:
    """Slots for runs by kinds of runs. Any thread may ask."""

    def __init__(self, capacity: Mapping[frozenset[Run.Mode], int]) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._held: dict[uuid.UUID, Held] = {}
        self._acquired: dict[frozenset[Run.Mode], set[uuid.UUID]] = {
            kind: set() for kind in capacity
        }

    @property
    def kinds(self) -> list[frozenset[Run.Mode]]:
        """The kinds of slots, each as the modes of the runs that they are for."""
        return list(self._capacity)

    def acquire(self, run_id: uuid.UUID, mode: Run.Mode) -> bool:
        """Keep a slot for a run until it is released; False: none is free, or the run has one."""
        (kind,) = (kind for kind in self._capacity if mode in kind)
        with self._lock:
            acquired = self._acquired[kind]
            free = run_id not in acquired and len(acquired) < self._capacity[kind]
            if free:
                acquired.add(run_id)
        return free

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

    def of(self, kind: frozenset[Run.Mode]) -> tuple[set[uuid.UUID], int]:
        """Return the runs that have slots of a kind, and how many are free."""
        with self._lock:
            acquired = set(self._acquired[kind])
        return acquired, self._capacity[kind] - len(acquired)

    def all(self) -> set[uuid.UUID]:
        """Return the runs that have slots."""
        with self._lock:
            return set().union(*self._acquired.values())
