"""The message of the run queue: one schema for the publisher and the consumer."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from django.conf import settings

from controlplane import amqp

KIND = "run-execution.requested"


class MalformedMessageError(Exception):
    """A message is not one of ours; it belongs to the dead letters."""


@dataclass(frozen=True, slots=True)
class RunRequested:
    """``{"runId": "<uuid>"}``: a run waits to be executed. The row says everything else."""

    run_id: uuid.UUID

    def to_bytes(self) -> bytes:
        """Return the message's body."""
        return json.dumps({"runId": str(self.run_id)}).encode()

    @classmethod
    def from_bytes(cls, body: bytes) -> RunRequested:
        """Return the message; raise ``MalformedMessageError`` for anything else."""
        try:
            members = json.loads(body)
            if not isinstance(members, dict) or set(members) != {"runId"}:
                raise MalformedMessageError("not an object with exactly the member runId")
            return cls(uuid.UUID(members["runId"]))
        except (ValueError, TypeError, AttributeError, RecursionError) as exc:
            raise MalformedMessageError(str(exc)) from exc


def topology() -> amqp.Topology:
    """Return the queue of runs that are to be executed."""
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
