"""The messages of a queue that name one row each: one schema for the publisher and the consumer."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from django.conf import settings

from controlplane.work import amqp
from controlplane.work.amqp import MalformedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class IdMessage:
    """``{"<member>": "<uuid>"}``: a row waits for a worker. The row says everything else."""

    kind: str
    member: str
    queue_setting: str
    """The setting that names the queue."""

    def to_bytes(self, row_id: uuid.UUID) -> bytes:
        """Return the body of the message that names a row."""
        return json.dumps({self.member: str(row_id)}).encode()

    def from_bytes(self, body: bytes) -> uuid.UUID:
        """Return the row that a message names; raise ``MalformedMessage`` for anything else."""
        try:
            members = json.loads(body)
            if not isinstance(members, dict) or set(members) != {self.member}:
                raise MalformedMessage(f"not an object with exactly the member {self.member}")
            return uuid.UUID(members[self.member])
        except (ValueError, TypeError, AttributeError, RecursionError) as exc:
            raise MalformedMessage(str(exc)) from exc

    def topology(self) -> amqp.Topology:
        """Return the queue of these messages."""
        return amqp.Topology(getattr(settings, self.queue_setting))

    def publish(self, row_id: uuid.UUID, *, dead_letter: bool = False) -> None:
        """Publish a row's message and wait for the broker's confirm; ``BrokerError`` if none.

        ``dead_letter`` puts it where a rejected delivery of it would go.
        """
        amqp.publish(
            settings.RABBITMQ_URL,
            self.topology(),
            body=self.to_bytes(row_id),
            message_id=str(row_id),
            kind=self.kind,
            timeout=settings.RABBITMQ_CONNECT_TIMEOUT_MS / 1000,
            dead_letter=dead_letter,
        )
