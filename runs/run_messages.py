"""The message of the run queue: one schema for the publisher and the consumer."""

from __future__ import annotations

import json
import queue
import threading
import uuid
from dataclasses import dataclass

import structlog
from django.conf import settings

from controlplane.work import amqp
from controlplane.work.amqp import MalformedMessage

log = structlog.get_logger(__name__)

KIND = "run-execution.requested"
MAX_ANNOUNCED = 1_000
"""So many announcements may wait for the broker; the runs of more are found by a sweeper."""


@dataclass(frozen=True, slots=True)
class RunRequested:
    """``{"runId": "<uuid>"}``: a run waits for a worker. The row says everything else."""

    run_id: uuid.UUID

    def to_bytes(self) -> bytes:
        """Return the message's body."""
        return json.dumps({"runId": str(self.run_id)}).encode()

    @classmethod
    def from_bytes(cls, body: bytes) -> RunRequested:
        """Return the message; raise ``MalformedMessage`` for anything else."""
        try:
            members = json.loads(body)
            if not isinstance(members, dict) or set(members) != {"runId"}:
                raise MalformedMessage("not an object with exactly the member runId")
            return cls(uuid.UUID(members["runId"]))
        except (ValueError, TypeError, AttributeError, RecursionError) as exc:
            raise MalformedMessage(str(exc)) from exc


def topology() -> amqp.Topology:
    """Return the queue of runs that wait for a worker."""
    return amqp.Topology(settings.WORKSPACE_RUN_QUEUE)


def publish_run_requested(run_id: uuid.UUID) -> None:
    """Publish the message of a run and wait for the broker's confirm; ``BrokerError`` if none."""
    amqp.publish(
        settings.RABBITMQ_URL,
        topology(),
        body=RunRequested(run_id).to_bytes(),
        message_id=str(run_id),
        kind=KIND,
        timeout=settings.RABBITMQ_CONNECT_TIMEOUT_MS / 1000,
    )


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
                publish_run_requested(run_id)
            except amqp.BrokerError as exc:
                log.warning("run_not_announced", run_id=str(run_id), reason=str(exc))
            except Exception:
                log.exception("run_not_announced", run_id=str(run_id))


_announcer = _Announcer()


def announce_run(run_id: uuid.UUID) -> None:
    """Tell the workers of a run soon, without waiting and without failing.

    For runs that do not depend on it: a sweeper finds one whose message is lost.
    """
    _announcer.announce(run_id)
