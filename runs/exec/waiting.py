"""Waiting for runs to end, any number of them at once, over one connection of the process.

Whoever waits is told by the announcement that comes with the seal of a record, and looks by itself
every ``LOOK_SECONDS``, as an announcement may get lost.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict

from controlplane.work.listener import Listener
from runs.models import Run
from runs.record.store import CHANNEL

LOOK_SECONDS = 2.0


class _Waiting:
    """Who waits for which record."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[int, set[threading.Event]] = defaultdict(set)
        self._listener = Listener(CHANNEL, self._heard, self._wake_all)

    def add(self, run_number: int) -> threading.Event:
        """Return an event that is set when the record may have ended."""
        told = threading.Event()
        with self._lock:
            self._events[run_number].add(told)
        self._listener.start()
        return told

    def remove(self, run_number: int, told: threading.Event) -> None:
        """Forget who does not wait any more."""
        with self._lock:
            self._events[run_number].discard(told)
            if not self._events[run_number]:
                del self._events[run_number]

    def stop(self) -> None:
        """Listen no more."""
        self._listener.stop()

    def _heard(self, payload: str) -> None:
        told = json.loads(payload)
        if told["sealed"]:
            with self._lock:
                waiting = list(self._events.get(told["runNumber"], ()))
            for event in waiting:
                event.set()

    def _wake_all(self) -> None:
        with self._lock:
            waiting = [event for events in self._events.values() for event in events]
        for event in waiting:
            event.set()


_waiting = _Waiting()


def stop_listening() -> None:
    """Give the connection back; who waits then looks only, until somebody else begins to wait."""
    _waiting.stop()


class Ending:
    """The end of one recorded run, which it may be waited for from before the run can begin."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._told = _waiting.add(run.number)

    def wait(self, seconds: float) -> bool:
        """Wait so long at the most for the run to end, and read it anew; False: it goes on."""
        until = time.monotonic() + seconds
        while self._run.status not in Run.TERMINAL:
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._told.wait(min(left, LOOK_SECONDS))
            self._told.clear()
            self._run.refresh_from_db()
        return True

    def close(self) -> None:
        """Wait no more."""
        _waiting.remove(self._run.number, self._told)
