"""The runs that a worker holds, and how many more it has room for.

Sessions have places of their own: hundreds of them may be open and idle for hours, and a command
that somebody waits for must not wait for one of them to end.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from runs.claims import Fence
from runs.models import Run
from runs.recorder import RunControl

SESSIONS = frozenset({Run.Mode.INTERACTIVE})
RUNS = frozenset({Run.Mode.ONE_SHOT, Run.Mode.BOOT})


@dataclass(frozen=True, slots=True)
class Held:
    """A run that a recorder of this worker is at."""

    fence: Fence
    control: RunControl


class Places:
    """Places for runs by kinds of runs. Any thread may ask."""

    def __init__(self, capacity: Mapping[frozenset[Run.Mode], int]) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._held: dict[uuid.UUID, Held] = {}
        self._taken: dict[frozenset[Run.Mode], set[uuid.UUID]] = {kind: set() for kind in capacity}

    @property
    def kinds(self) -> list[frozenset[Run.Mode]]:
        """The kinds of places, each as the modes of the runs that they are for."""
        return list(self._capacity)

    def take(self, run_id: uuid.UUID, mode: Run.Mode) -> bool:
        """Keep a place for a run until it leaves; False when there is none, or the run has one."""
        (kind,) = (kind for kind in self._capacity if mode in kind)
        with self._lock:
            taken = self._taken[kind]
            free = run_id not in taken and len(taken) < self._capacity[kind]
            if free:
                taken.add(run_id)
        return free

    def hold(self, run_id: uuid.UUID, held: Held) -> None:
        """Give the place that was taken for a run to its recorder."""
        with self._lock:
            self._held[run_id] = held

    def leave(self, run_id: uuid.UUID) -> None:
        """Make the place of a run free."""
        with self._lock:
            self._held.pop(run_id, None)
            for taken in self._taken.values():
                taken.discard(run_id)

    def holding(self) -> list[Held]:
        """Return what recorders are at."""
        with self._lock:
            return list(self._held.values())

    def of(self, kind: frozenset[Run.Mode]) -> tuple[set[uuid.UUID], int]:
        """Return the runs that have places of a kind, and how many places are free."""
        with self._lock:
            taken = set(self._taken[kind])
        return taken, self._capacity[kind] - len(taken)

    def all(self) -> set[uuid.UUID]:
        """Return the runs that have places."""
        with self._lock:
            return set().union(*self._taken.values())
