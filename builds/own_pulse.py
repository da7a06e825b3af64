"""What a worker knows of its own heartbeat, and so of how much the heartbeats of others tell."""

from __future__ import annotations

import time
from datetime import timedelta


def _boot_time() -> float:
    """Return seconds since boot; unlike the monotonic clock they go on while a machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class OwnPulse:
    """Remembers when this worker's heartbeat was written last."""

    def __init__(self, heartbeat: timedelta) -> None:
        # Whoever lives beats within two intervals; before that nobody is taken for dead.
        self._hold = 2 * heartbeat.total_seconds()
        self._hold_until = _boot_time() + self._hold
        self._beaten_at = _boot_time()

    def beaten(self) -> None:
        """Remember that it was written just now."""
        now = _boot_time()
        if now - self._beaten_at > self._hold:
            # The database was away, or this machine was: then every heartbeat may be old.
            self._hold_until = now + self._hold
        self._beaten_at = now

    def may_judge(self) -> bool:
        """Whether an old heartbeat means a dead worker: ours is fresh, and not since just now."""
        now = _boot_time()
        return now - self._beaten_at <= self._hold and now >= self._hold_until
