"""Waiting for runs to end, any number of them at once, over one connection of the process.

Whoever waits is told by the announcement that comes with the seal of a record, which says how the
run has ended, and looks by itself every ``LOOK_SECONDS``, as an announcement may get lost.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from controlplane.work.listener import Listener
from runs.models import Run
from runs.record.store import CHANNEL

LOOK_SECONDS = 2.0


class _Told(threading.Event):
    """Is set when a record may have ended; ``ended`` is how, where the announcement says it."""

    ended: Mapping[str, Any] | None = None


class _Waiting:
    """Who waits for which record."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[int, set[_Told]] = defaultdict(set)
        self._listener = Listener(CHANNEL, self._heard, self._wake_all)

    def add(self, run_number: int) -> _Told:
        """Return an event that is set when the record may have ended."""
        told = _Told()
        with self._lock:
            self._events[run_number].add(told)
        self._listener.start()
        return told

    def remove(self, run_number: int, told: _Told) -> None:
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
                event.ended = told.get("ended")
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
        self.wrote_nothing = False
        """Whether it is known that the run has ended without any output."""
        self._run = run
        self._told = _waiting.add(run.number)

    def wait(self, seconds: float) -> bool:
        """Wait so long at the most for the run to end, and note how in its row; False: it goes on.

        Of a row whose end was announced nothing else is read anew.
        """
        until = time.monotonic() + seconds
        while self._run.status not in Run.TERMINAL:
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._told.wait(min(left, LOOK_SECONDS))
            self._told.clear()
            if self._told.ended is None:
                self._run.refresh_from_db()
            else:
                self._note(self._told.ended)
        return True

    def _note(self, ended: Mapping[str, Any]) -> None:
        run = self._run
        run.status, run.exit_code = ended["status"], ended["exitCode"]
        run.exit_signal = ended["exitSignal"]
        run.error_code, run.error_message = ended["errorCode"], ended["errorMessage"]
        self.wrote_nothing = ended["outputBytes"] == 0

    def close(self) -> None:
        """Wait no more."""
        _waiting.remove(self._run.number, self._told)
