"""The message of the build queue: one schema for the publisher and the consumer."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from django.conf import settings

from controlplane.work import amqp
from controlplane.work.amqp import MalformedMessage

KIND = "sandbox-build-job.requested"


@dataclass(frozen=True, slots=True)
class BuildRequested:
    """``{"jobId": "<uuid>"}``: a job waits for a worker. The row says everything else."""

    job_id: uuid.UUID

    def to_bytes(self) -> bytes:
        """Return the message's body."""
        return json.dumps({"jobId": str(self.job_id)}).encode()

    @classmethod
    def from_bytes(cls, body: bytes) -> BuildRequested:
        """Return the message; raise ``MalformedMessage`` for anything else."""
        try:
            members = json.loads(body)
            if not isinstance(members, dict) or set(members) != {"jobId"}:
                raise MalformedMessage("not an object with exactly the member jobId")
            return cls(uuid.UUID(members["jobId"]))
        except (ValueError, TypeError, AttributeError, RecursionError) as exc:
            raise MalformedMessage(str(exc)) from exc


def topology() -> amqp.Topology:
    """Return the queue of build jobs."""
    return amqp.Topology(settings.WORKSPACE_BUILD_QUEUE)


def publish_build_requested(job_id: uuid.UUID) -> None:
    """Publish the message of a job and wait for the broker's confirm; ``BrokerError`` if none."""
    amqp.publish(
        settings.RABBITMQ_URL,
        topology(),
        body=BuildRequested(job_id).to_bytes(),
        message_id=str(job_id),
        kind=KIND,
        timeout=settings.RABBITMQ_CONNECT_TIMEOUT_MS / 1000,
    )
