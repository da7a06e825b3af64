"""How much of something one workspace may have: so much at once, and then so much a second."""

from __future__ import annotations

import time


class Allowance:
    """Lets pass ``at_once``, and ``per_second`` after that."""

    def __init__(self, at_once: float, per_second: float) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._room = at_once
        self._filled = time.monotonic()

    @property
    def room(self) -> float:
        """How much may pass now."""
        now = time.monotonic()
        self._room = min(self._at_once, self._room + (now - self._filled) * self._per_second)
        self._filled = now
        return self._room

    @property
    def is_full(self) -> bool:
        """Whether nothing has passed lately."""
        return self.room >= self._at_once

    def take(self) -> bool:
        """Count one; False when there are too many."""
        if self.room < 1:
            return False
        self._room -= 1
        return True
