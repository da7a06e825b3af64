"""The slots of a build worker: some for builds, more for starts that need none.

A job begins with a start slot. One that has to build an image gives it up for a build slot; without
a free one it waits as a row (``BuildJob.Lane.BUILD``) and holds nothing. Once its container has
started, a job holds no slot at all: a boot takes as long as its steps, and waits for nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from controlplane.work.models import SlotUsage
from workspaces.models import BuildJob

Lane = BuildJob.Lane

_LOOK_SECONDS = 0.5


class BuildSlotNeeded(Exception):
    """An image has to be built, and no build slot is free."""


class JobSlots:
    """The slots of one worker. Any thread may ask."""

    def __init__(self, *, start: int, build: int) -> None:
        self._capacity = {Lane.START: start, Lane.BUILD: build}
        self._in_use = dict.fromkeys(self._capacity, 0)
        self._changed = threading.Condition()

    def acquire(self, lane: Lane, *, stopped: Callable[[], bool]) -> JobSlot | None:
        """Wait for a slot; None once ``stopped`` says so."""
        with self._changed:
            while not stopped():
                if self._has_room(lane):
                    return self._taken(lane)
                self._changed.wait(_LOOK_SECONDS)
        return None

    def try_acquire(self, lane: Lane) -> JobSlot | None:
        """Return a slot; None when none is free."""
        with self._changed:
            return self._taken(lane) if self._has_room(lane) else None

    def free(self, lane: Lane) -> int:
        """Return how many slots of a lane are free."""
        with self._changed:
            return self._capacity[lane] - self._in_use[lane]

    def usage(self) -> dict[str, SlotUsage]:
        """Return by lane how many slots there are and how many are in use."""
        with self._changed:
            return {
                lane.value: SlotUsage(capacity=capacity, in_use=self._in_use[lane])
                for lane, capacity in self._capacity.items()
            }

    def move(self, source: Lane, target: Lane) -> bool:
        """Change a slot of ``source`` for one of ``target``; False when none is free there."""
        with self._changed:
            if not self._has_room(target):
                return False
            self._in_use[target] += 1
            self._in_use[source] -= 1
            self._changed.notify_all()
        return True

    def release(self, lane: Lane) -> None:
        """Free a slot."""
        with self._changed:
            self._in_use[lane] -= 1
            self._changed.notify_all()

    def _has_room(self, lane: Lane) -> bool:
        return self._in_use[lane] < self._capacity[lane]

    def _taken(self, lane: Lane) -> JobSlot:
        self._in_use[lane] += 1
        return JobSlot(self, lane)


class JobSlot:
    """The slot of one job. One thread at a time uses it."""

    def __init__(self, slots: JobSlots, lane: Lane) -> None:
        self._slots = slots
        self.lane: Lane | None = lane

    def require_build(self) -> None:
        """Go on with a build slot; raise :class:`BuildSlotNeeded` when none is free."""
        if self.lane is None:
            raise BuildSlotNeeded
        if self.lane is not Lane.BUILD:
            if not self._slots.move(self.lane, Lane.BUILD):
                raise BuildSlotNeeded
            self.lane = Lane.BUILD

    def release(self) -> Lane | None:
        """Free the slot; return which lane's it was, None when it was free already."""
        lane, self.lane = self.lane, None
        if lane is not None:
            self._slots.release(lane)
        return lane
