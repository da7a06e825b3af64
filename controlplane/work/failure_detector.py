"""What a worker knows of its own heartbeat, and so of how much the heartbeats of others tell."""

from __future__ import annotations

import time
from datetime import timedelta


def _boot_time() -> float:
    """Return seconds since boot; unlike the monotonic clock they go on while a machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class FailureDetector:
    """Tells whether a stale heartbeat means a dead worker, from how regular our own one is."""

    def __init__(self, heartbeat: timedelta) -> None:
        # A live worker beats within two intervals; before that nobody is taken for dead.
        self._hold = 2 * heartbeat.total_seconds()
        self._hold_until = _boot_time() + self._hold
        self._beaten_at = _boot_time()

    @property
    def seconds_since_heartbeat(self) -> float:
        """How long ago our own heartbeat was written."""
        return _boot_time() - self._beaten_at

    def heartbeat_written(self) -> None:
        """Remember that our own heartbeat was written just now."""
        now = _boot_time()
        if now - self._beaten_at > self._hold:
            # The database was away, or this machine was: then every heartbeat may be old.
            self._hold_until = now + self._hold
        self._beaten_at = now

    def is_reliable(self) -> bool:
        """Whether a stale heartbeat means a dead worker: ours is fresh, and has been a while."""
        return self.seconds_since_heartbeat <= self._hold and _boot_time() >= self._hold_until
