"""The message of the run queue, published at once or soon."""

from __future__ import annotations

import queue
import threading
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


class _Announcer:
    """Publishes one message after the other on a thread of its own, which the first one starts."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[uuid.UUID] = queue.Queue(MAX_ANNOUNCED)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def announce(self, run_id: uuid.UUID) -> None:
        """Have the message published soon, if the broker takes it."""
        try:
            self._waiting.put_nowait(run_id)
        except queue.Full:
            log.warning("run_not_announced", run_id=str(run_id), reason="too many wait")
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._publish_all, name="announcer", daemon=True
                )
                self._thread.start()

    def _publish_all(self) -> None:
        while True:
            run_id = self._waiting.get()
            try:
                RUN_REQUESTED.publish(run_id)
            except BrokerError as exc:
                log.warning("run_not_announced", run_id=str(run_id), reason=str(exc))
            except Exception:
                log.exception("run_not_announced", run_id=str(run_id))


_announcer = _Announcer()


def announce_run(run_id: uuid.UUID) -> None:
    """Tell the workers of a run soon, without waiting and without failing.

    For runs that do not depend on it: a sweeper finds one whose message is lost.
    """
    _announcer.announce(run_id)


CANCELLATIONS = "run_cancellations"
"""The channel on which run workers are told that a run is to be cancelled."""

INPUT = "run_input"
"""The channel on which run workers are told the id of a run that was given input."""

QUEUED = "run_queued"
"""The channel on which run workers are told the id of a run that somebody waits for."""
