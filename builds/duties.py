"""What a worker does again and again beside its jobs, each on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from controlplane.errors import JobError

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Duty:
    """Something to be done every so often; ``run`` returns early once the event is set."""

    name: str
    every: timedelta
    run: Callable[[threading.Event], object]

    def repeat(self, stopped: threading.Event) -> None:
        """Do it until ``stopped`` is set, whatever goes wrong."""
        while not stopped.wait(self.every.total_seconds()):
            close_old_connections()
            guarded(self.name, lambda: self.run(stopped))
        connections.close_all()


def guarded(name: str, duty: Callable[[], object]) -> None:
    """Run one duty once; the next round tries again whatever went wrong."""
    try:
        duty()
    except (DatabaseError, InterfaceError, JobError) as exc:
        reason = exc.message if isinstance(exc, JobError) else type(exc).__name__
        log.warning("duty_failed", duty=name, reason=reason)
        close_old_connections()
    except Exception:
        log.exception("duty_failed", duty=name)
