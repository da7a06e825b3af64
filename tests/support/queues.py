"""Queues of the broker, as tests look at them and remove them."""

from __future__ import annotations

from pika.exceptions import ChannelClosedByBroker

from controlplane.work.amqp import BrokerError, Topology, _connection


def purge_and_delete(url: str, topology: Topology, *, timeout: float) -> None:
    """Remove the queue, its dead letters and its exchange."""
    with _connection(url, timeout=timeout, name="test: removal") as connection:
        channel = connection.channel()
        channel.queue_delete(topology.queue)
        channel.queue_delete(topology.dead_letter_queue)
        channel.exchange_delete(topology.dead_letter_exchange)


def depth(url: str, queue: str, *, timeout: float) -> int:
    """Return how many messages wait in ``queue``; 0 when there is no such queue."""
    try:
        with _connection(url, timeout=timeout, name="test: depth") as connection:
            answer = connection.channel().queue_declare(queue, passive=True)
            count: int = answer.method.message_count
            return count
    except BrokerError as exc:
        if isinstance(exc.__cause__, ChannelClosedByBroker):
            return 0
        raise
