"""Which requests wait for a thread, so that those of one workspace never take them all.

A call of a workspace's files takes as long as the workspace does, and that is its root's to decide.
Such calls have half of the threads, those of one workspace a quarter; the others wait in order.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

MOST_WAITING = 64
"""How many calls of one workspace may wait."""

_WORKSPACE = re.compile(r"/v1/workspaces/([^/]+)/(?:files|archive|ports)(?:/|\Z)")

Item = TypeVar("Item")


def lane_of(path: str) -> str:
    """Return the workspace whose files a request to ``path`` is about; empty: none's."""
    found = _WORKSPACE.match(path)
    return found[1] if found is not None else ""


@dataclass(frozen=True, slots=True)
class Place:
    """What a request has entered with: it may ``start``, has to wait, or is ``refused``."""

    start: bool = False
    refused: bool = False


class Lanes(Generic[Item]):
    """The requests that have a thread or wait for one, by their workspace. For one thread only.

    ``threads`` is how many there are for all requests of the process.
    """

    def __init__(self, threads: int) -> None:
        self._most = max(1, threads // 2)
        self._most_of_one = max(1, threads // 4)
        self._lane_of: dict[Item, str] = {}
        self._started: Counter[str] = Counter()
        # A workspace that was served stands behind the others.
        self._waiting: OrderedDict[str, deque[Item]] = OrderedDict()

    def enter(self, item: Item, lane: str) -> Place:
        """Take in a request; one that is refused has not entered."""
        waiting = self._waiting.get(lane, ())
        if not waiting and self._has_room(lane):
            self._start(item, lane)
            return Place(start=True)
        if len(waiting) >= MOST_WAITING:
            return Place(refused=True)
        self._waiting.setdefault(lane, deque()).append(item)
        self._lane_of[item] = lane
        return Place()

    def leave(self, item: Item) -> list[Item]:
        """Forget a request, wherever it was; return those that start in its place."""
        lane = self._lane_of.pop(item, None)
        if lane is None:
            return []
        waiting = self._waiting.get(lane, ())
        if item in waiting:
            self._unqueue(item, lane)
        else:
            self._started[lane] -= 1
            if not self._started[lane]:
                del self._started[lane]
        return self._started_now()

    def stop(self) -> None:
        """Start none of those that wait."""
        self._most = 0

    def _started_now(self) -> list[Item]:
        found = []
        for lane in list(self._waiting):
            while self._waiting.get(lane) and self._has_room(lane):
                item = self._waiting[lane][0]
                self._unqueue(item, lane)
                if lane in self._waiting:
                    self._waiting.move_to_end(lane)
                self._start(item, lane)
                found.append(item)
        return found

    def _unqueue(self, item: Item, lane: str) -> None:
        self._waiting[lane].remove(item)
        if not self._waiting[lane]:
            del self._waiting[lane]

    def _start(self, item: Item, lane: str) -> None:
        self._lane_of[item] = lane
        self._started[lane] += 1

    def _has_room(self, lane: str) -> bool:
        return self._started.total() < self._most and self._started.get(lane, 0) < self._most_of_one
