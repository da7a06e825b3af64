"""What a worker does again and again beside its jobs, each on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django.db import close_old_connections, connections

from controlplane.metrics import duties as counted


@dataclass(frozen=True, slots=True)
class Duty:
    """Something to be done every so often; ``run`` returns early once the event is set."""

    name: str
    every: timedelta
    run: Callable[[threading.Event], object]
    woken: threading.Event | None = None
    """Set, it makes the next time be now; whoever waits for ``stopped`` has to wait ``every``."""

    def repeat(self, stopped: threading.Event) -> None:
        """Do it until ``stopped`` is set, whatever goes wrong."""
        while not self._wait(stopped):
            close_old_connections()
            guarded(self.name, lambda: self.run(stopped))
        connections.close_all()

    def _wait(self, stopped: threading.Event) -> bool:
        seconds = self.every.total_seconds()
        if self.woken is None:
            return stopped.wait(seconds)
        if not stopped.is_set() and self.woken.wait(seconds):
            self.woken.clear()
        return stopped.is_set()


def guarded(name: str, duty: Callable[[], object]) -> None:
    """Run one duty once; the next round tries again whatever went wrong."""
    counted.guarded(name, duty, worker="build")
