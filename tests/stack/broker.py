"""What the broker holds: the build queue of the chaos tests and its dead letters."""

from __future__ import annotations

import pika
from pika.exceptions import ChannelClosedByBroker

from deploy.services.rabbitmq import PrivateRabbitMQ
from tests.support.broker_parameters import patient_parameters

QUEUE = "chaos-builds"
DEAD_LETTERS = f"{QUEUE}.dlq"
RUN_QUEUE = "chaos-runs"


class Broker:
    """The queues; each question has a connection of its own, so the broker may die in between."""

    def __init__(self, rabbitmq: PrivateRabbitMQ) -> None:
        self._rabbitmq = rabbitmq

    def _connect(self) -> pika.BlockingConnection:
        """Return a new connection; the caller closes it."""
        return pika.BlockingConnection(patient_parameters(self._rabbitmq.url))

    def publish(self, body: bytes) -> None:
        """Put a message on the build queue."""
        with self._connect() as connection:
            connection.channel().basic_publish("", QUEUE, body)

    def depth(self, queue: str = QUEUE) -> int:
        """Return how many messages wait in a queue."""
        with self._connect() as connection:
            try:
                answer = connection.channel().queue_declare(queue, passive=True)
            except ChannelClosedByBroker:
                return 0
            return int(answer.method.message_count)

    def dead_letters(self) -> list[bytes]:
        """Take the dead letters."""
        found: list[bytes] = []
        with self._connect() as connection:
            channel = connection.channel()
            while True:
                method, _, body = channel.basic_get(DEAD_LETTERS, auto_ack=True)
                if method is None:
                    return found
                found.append(body or b"")

    def purge(self, queue: str) -> None:
        """Empty a queue."""
        with self._connect() as connection:
            try:
                connection.channel().queue_purge(queue)
            except ChannelClosedByBroker:
                return
