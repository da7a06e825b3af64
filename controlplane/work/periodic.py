"""What workers do every so often beside their queues: each task on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from controlplane.database.retries import database_trouble
from controlplane.errors import JobError
from controlplane.metrics.families import SWEEPS
from controlplane.work.stopping import StopEvent

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicTask:
    """Something to be done ``every`` so often, whatever goes wrong.

    A task has one ``run``, which returns early once the event is set, or several ``steps`` that
    follow each other; a step that fails does not stop the next one.
    """

    name: str
    every: timedelta
    run: Callable[[StopEvent], object] | None = None
    steps: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    first: timedelta | None = None
    """How long to wait before the first time; None: ``every``."""
    woken: threading.Event | None = None
    """Set, it ends the wait; the others wait for the worker's end only."""

    def repeat(self, stopped: StopEvent, *, worker: str) -> None:
        """Do it until ``stopped`` is set; ``worker`` is the kind of worker, for the metrics."""
        pause = self.every if self.first is None else self.first
        while not self._wait(pause, stopped):
            close_old_connections()
            if self.run is not None:
                guarded(self.name, partial(self.run, stopped), worker=worker)
            for name, step in self.steps.items():
                guarded(name, step, worker=worker)
            pause = self.every
        connections.close_all()

    def interrupt(self) -> None:
        """End the wait of a task whose ``stopped`` was just set."""
        if self.woken is not None:
            self.woken.set()

    def _wait(self, pause: timedelta, stopped: threading.Event) -> bool:
        seconds = pause.total_seconds()
        if self.woken is None:
            return stopped.wait(seconds)
        if not stopped.is_set() and self.woken.wait(seconds):
            self.woken.clear()
        return stopped.is_set()


def guarded(name: str, task: Callable[[], object], *, worker: str) -> None:
    """Run one task of a ``worker`` once, and count how it ends; the next round tries again."""
    outcome = "failed"
    try:
        task()
        outcome = "done"
    except (DatabaseError, InterfaceError, JobError) as exc:
        reason = exc.message if isinstance(exc, JobError) else database_trouble(exc)
        log.warning("task_failed", task=name, reason=reason)
        close_old_connections()
    except Exception:
        log.exception("task_failed", task=name)
    finally:
        SWEEPS.count(worker=worker, task=name, outcome=outcome)
