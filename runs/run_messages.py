"""The message of the run queue, published at once or soon."""

from __future__ import annotations

import threading
import time
import uuid

import structlog

from controlplane.work.amqp import BrokerError
from controlplane.work.id_messages import IdMessage

log = structlog.get_logger(__name__)

MAX_ANNOUNCED = 1_000
"""So many announcements may wait for the broker; the runs of more are found by a sweeper."""

RUN_REQUESTED = IdMessage(
    kind="run-execution.requested", member="runId", queue_setting="WORKSPACE_RUN_QUEUE"
)
"""A run waits for a worker."""


class Announcer:
    """Publishes one message after the other on a thread of its own, which the first one starts.

    Each waits for so many seconds first, in which it may be withdrawn.
    """

    def __init__(self, after: float) -> None:
        self._after = after
        self._waiting: dict[uuid.UUID, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def announce(self, run_id: uuid.UUID) -> None:
        """Have the message published soon, if the broker takes it."""
        with self._changed:
            if len(self._waiting) >= MAX_ANNOUNCED:
                log.warning("run_not_announced", run_id=str(run_id), reason="too many wait")
                return
            self._waiting[run_id] = time.monotonic() + self._after
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._publish_all, name="announcer", daemon=True)
                try:
                    thread.start()
                except RuntimeError as exc:
                    # The run is stored: its client must not be told that it failed.
                    log.warning("run_not_announced", run_id=str(run_id), reason=str(exc))
                else:
                    self._thread = thread
            elif len(self._waiting) == 1:
                self._changed.notify()

    def withdraw(self, run_id: uuid.UUID) -> None:
        """Publish nothing of a run, unless that has begun."""
        with self._changed:
            self._waiting.pop(run_id, None)

    def _next(self) -> uuid.UUID:
        """Wait until the message of a run is due, and forget it."""
        with self._changed:
            while True:
                run_id, due = next(iter(self._waiting.items()), (None, 0.0))
                left = due - time.monotonic()
                if run_id is None:
                    self._changed.wait()
                elif left > 0:
                    self._changed.wait(left)
                else:
                    del self._waiting[run_id]
                    return run_id

    def _publish_all(self) -> None:
        while True:
            run_id = self._next()
            try:
                RUN_REQUESTED.publish(run_id)
            except BrokerError as exc:
                log.warning("run_not_announced", run_id=str(run_id), reason=str(exc))
            except Exception:
                log.exception("run_not_announced", run_id=str(run_id))


LATER_SECONDS = 0.25
"""How long the message of a run is kept whose workers were told of it another way. Behind a pooler
through which no notification comes, this is what an exec waits for."""

_announcer, _late_announcer = Announcer(0.0), Announcer(LATER_SECONDS)


def announce_run(run_id: uuid.UUID) -> None:
    """Tell the workers of a run soon, without waiting and without failing.

    For runs that do not depend on it: a sweeper finds one whose message is lost.
    """
    _announcer.announce(run_id)


def announce_run_later(run_id: uuid.UUID) -> None:
    """As :func:`announce_run`, a moment later: of short commands the end is known before that."""
    _late_announcer.announce(run_id)


def withdraw_run(run_id: uuid.UUID) -> None:
    """Tell nobody of a run that has ended."""
    _late_announcer.withdraw(run_id)


CANCELLATIONS = "run_cancellations"
"""The channel on which run workers are told that a run is to be cancelled."""

INPUT = "run_input"
"""The channel on which run workers are told the id of a run that was given input."""

QUEUED = "run_queued"
"""The channel on which run workers are told the id of a run that somebody waits for."""
