"""RabbitMQ: topology, confirmed publishing, and a consumer that survives its broker.

The only module that imports pika. Two facts shape it (pika's documentation, "thread safety", and
https://www.rabbitmq.com/docs/confirms):

* a ``BlockingConnection`` is used by one thread at a time, so the consumer's thread only pumps the
  connection and work happens elsewhere; a delivery is settled from another thread through
  ``add_callback_threadsafe``;
* without publisher confirms and ``mandatory`` a message to a missing queue is lost without a sign.

A message is a hint, the database row is the truth: losing or repeating one does no harm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass

import pika
import structlog
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError, ChannelClosedByBroker, NackError
from pika.spec import Basic, BasicProperties

from controlplane.logging import carried
from controlplane.work.spares import Spares

log = structlog.get_logger(__name__)

DEAD_LETTER_LIMIT = 10_000
"""Dead letters kept for an operator to look at; the oldest leave first."""


_ACCESS_REFUSED = 403
_PRECONDITION_FAILED = 406

_REFUSED_PAUSE_SECONDS = (0.05, 1.0)
"""How long to wait before a message that the broker refused is sent again: at first, at most."""

PUBLISHER = "controlplane publisher"
"""What the broker shows of connections that publish."""

SPARE_SECONDS = 10.0
"""How long a connection that published is kept for the next message: nobody answers the broker's
heartbeats on it meanwhile, without which the broker waits a minute."""

_UNDER_WAY = threading.BoundedSemaphore(64)
"""How many calls may wait for the broker at once in this process."""


class MalformedMessage(Exception):
    """A message is not one of ours; it belongs to the dead letters."""


class BrokerError(Exception):
    """The broker cannot be reached, or did not confirm; the text names no credentials."""


@dataclass(frozen=True, slots=True)
class Topology:
    """One work queue: durable, quorum, with ``<queue>.dlx`` and ``<queue>.dlq`` behind it."""

    queue: str

    @property
    def dead_letter_exchange(self) -> str:
        """The direct exchange that rejected messages go to."""
        return f"{self.queue}.dlx"

    @property
    def dead_letter_queue(self) -> str:
        """The queue that keeps rejected messages."""
        return f"{self.queue}.dlq"

    def declare(self, channel: BlockingChannel) -> None:
        """Declare everything; declaring what exists with the same arguments changes nothing."""
        channel.exchange_declare(self.dead_letter_exchange, exchange_type="direct", durable=True)
        channel.queue_declare(
            self.dead_letter_queue,
            durable=True,
            arguments={"x-queue-type": "quorum", "x-max-length": DEAD_LETTER_LIMIT},
        )
        channel.queue_bind(
            self.dead_letter_queue, self.dead_letter_exchange, routing_key=self.dead_letter_queue
        )
        channel.queue_declare(
            self.queue,
            durable=True,
            arguments={
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": self.dead_letter_exchange,
                "x-dead-letter-routing-key": self.dead_letter_queue,
            },
        )


def _parameters(url: str, *, timeout: float, name: str) -> pika.URLParameters:
    try:
        parameters = pika.URLParameters(url)
    except LookupError as exc:  # pika takes the path apart without a look at it
        raise ValueError("malformed") from exc
    parameters.socket_timeout = timeout
    parameters.stack_timeout = timeout * 2
    parameters.blocked_connection_timeout = timeout * 2
    parameters.connection_attempts = 1
    parameters.heartbeat = 30
    parameters.client_properties = {"connection_name": name}
    if name == PUBLISHER:
        # Who was there a moment ago and answers no packet is given up while there is time for
        # another try.
        parameters.tcp_options = {"TCP_USER_TIMEOUT": round(timeout * 1000)}
    return parameters


def _open(url: str, *, timeout: float, name: str) -> pika.BlockingConnection:
    try:
        return pika.BlockingConnection(_parameters(url, timeout=timeout, name=name))
    except (AMQPError, AMQPConnectorException, OSError, ValueError) as exc:
        # pika's own text may hold the URL, an unresolvable host is a bare OSError, and a server
        # that takes the connection and says nothing ends in an exception of the connector's own.
        raise BrokerError(f"The broker cannot be reached ({type(exc).__name__}).") from exc


def _close(connection: pika.BlockingConnection) -> None:
    if connection.is_open:
        try:
            connection.close()
        except (AMQPError, OSError):
            log.debug("broker_close_failed")


@contextmanager
def _connection(url: str, *, timeout: float, name: str) -> Iterator[pika.BlockingConnection]:
    """Yield an open connection; every failure of the broker becomes ``BrokerError``."""
    connection = _open(url, timeout=timeout, name=name)
    try:
        yield connection
    except (AMQPError, OSError) as exc:
        raise BrokerError(f"The broker failed ({type(exc).__name__}).") from exc
    finally:
        _close(connection)


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Run ``work`` for at most ``seconds``; raise ``BrokerError`` when it takes longer.

    A blocking call of pika waits for ever on a broker that sends heartbeats and nothing else, as
    a quorum queue without its majority does, and no timer of pika runs meanwhile. So the call has
    a thread of its own; one that is given up ends with its connection.
    """
    if not _UNDER_WAY.acquire(blocking=False):
        raise BrokerError("The broker has too many unanswered calls.")
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            work()
            outcome.set_result(None)
        except BaseException as exc:
            outcome.set_exception(exc)
        finally:
            _UNDER_WAY.release()

    try:
        threading.Thread(target=carried(run), name="broker call", daemon=True).start()
    except RuntimeError as exc:  # the process may have no more threads
        _UNDER_WAY.release()
        raise BrokerError("The broker was not asked: no thread could be started.") from exc
    try:
        outcome.result(timeout=seconds)
    except FutureTimeoutError as exc:
        raise BrokerError(f"The broker did not answer within {seconds:g} s.") from exc


@dataclass(frozen=True, slots=True)
class _Message:
    topology: Topology
    routing_key: str
    body: bytes
    properties: BasicProperties


class _Publisher:
    """An open connection and what it has declared; one thread uses it at a time."""

    def __init__(self, connection: pika.BlockingConnection) -> None:
        self.connection = connection
        self._channel: BlockingChannel | None = None
        self._declared: set[Topology] = set()

    def publish(self, message: _Message) -> None:
        """Publish and wait for the confirm; raises pika's errors and ``OSError``."""
        channel = self._channel
        if channel is None or not channel.is_open:
            channel = self._channel = self.connection.channel()
            channel.confirm_delivery()
        if message.topology not in self._declared:
            message.topology.declare(channel)
            self._declared.add(message.topology)
        channel.basic_publish(
            exchange="",
            routing_key=message.routing_key,
            body=message.body,
            mandatory=True,
            properties=message.properties,
        )


_spares = Spares[_Publisher](
    seconds=SPARE_SECONDS, most=8, dispose=lambda publisher: _close(publisher.connection)
)


def publish(
    url: str,
    topology: Topology,
    *,
    body: bytes,
    message_id: str,
    kind: str,
    timeout: float,
    dead_letter: bool = False,
) -> None:
    """Publish one persistent JSON message and wait for the broker to confirm it.

    ``dead_letter`` sends it to the queue of dead letters, as rejecting a delivery would.

    What the broker refuses is sent again, for at most ``timeout`` seconds. Raises ``BrokerError``
    when it refuses it for good, is down, has no such queue, or does not confirm within twice
    ``timeout`` seconds. A connection serves again within ``SPARE_SECONDS``, as opening one costs
    ten times as much as the message.
    """
    message = _Message(
        topology,
        topology.dead_letter_queue if dead_letter else topology.queue,
        body,
        BasicProperties(
            content_type="application/json",
            delivery_mode=pika.DeliveryMode.Persistent.value,
            message_id=message_id,
            type=kind,
            timestamp=int(time.time()),
        ),
    )
    give_up = time.monotonic() + timeout
    key = (url, timeout)

    def send() -> None:
        publisher = _spares.take(key)
        if publisher is None or not _is_sent(publisher, message):
            if time.monotonic() >= give_up + timeout:
                return  # nobody waits for it any more
            publisher = _Publisher(_open(url, timeout=timeout, name=PUBLISHER))
            try:
                _send_until(give_up, publisher, message)
            except BaseException as exc:
                _close(publisher.connection)
                if isinstance(exc, AMQPError | OSError):
                    raise BrokerError(f"The broker failed ({type(exc).__name__}).") from exc
                raise
        _spares.give(key, publisher)

    _within(2 * timeout, send)


def _is_sent(spare: _Publisher, message: _Message) -> bool:
    """Publish over a connection that was used before; one that fails is closed.

    It may have ended meanwhile, and its queue may be gone: a new connection tells what is the case.
    """
    try:
        spare.publish(message)
    except Exception as exc:  # pika also asserts
        log.debug("spare_connection_failed", reason=type(exc).__name__)
        _close(spare.connection)
        return False
    return True


def _send_until(give_up: float, publisher: _Publisher, message: _Message) -> None:
    pause, longest = _REFUSED_PAUSE_SECONDS
    while True:
        try:
            publisher.publish(message)
        except (NackError, ChannelClosedByBroker) as error:
            if time.monotonic() + pause >= give_up or not _may_pass(error):
                raise
            log.info("message_refused", queue=message.routing_key, again_in_s=pause)
        else:
            return
        publisher.connection.sleep(pause)
        pause = min(2 * pause, longest)


def _may_pass(refusal: AMQPError) -> bool:
    """Return whether the broker may take later what it has refused.

    A queue that several connections declare at the same time takes nothing until one of them has
    made it. A queue with other arguments, and one that is not ours, stay what they are.
    """
    lasting = (_ACCESS_REFUSED, _PRECONDITION_FAILED)
    return not (isinstance(refusal, ChannelClosedByBroker) and refusal.reply_code in lasting)


def ping(url: str, *, timeout: float) -> None:
    """Open and close a connection; raise ``BrokerError`` when that fails."""

    def open_and_close() -> None:
        with _connection(url, timeout=timeout, name="controlplane readiness"):
            pass

    _within(2 * timeout, open_and_close)


class Delivery:
    """One message that waits to be settled, once, from any thread.

    Settling is a no-op when the connection it came over is gone: the broker then delivers it again.
    """

    def __init__(
        self, connection: pika.BlockingConnection, channel: BlockingChannel, tag: int, body: bytes
    ) -> None:
        self.body = body
        self._connection = connection
        self._channel = channel
        self._tag = tag
        self._settled = threading.Lock()

    def ack(self) -> None:
        """Tell the broker that the message is done with."""
        self._settle(lambda: self._channel.basic_ack(self._tag))

    def reject(self) -> None:
        """Send the message to the dead letters."""
        self._settle(lambda: self._channel.basic_reject(self._tag, requeue=False))

    def requeue(self) -> None:
        """Give the message back for another consumer."""
        self._settle(lambda: self._channel.basic_reject(self._tag, requeue=True))

    def _settle(self, action: Callable[[], None]) -> None:
        if not self._settled.acquire(blocking=False):
            return

        def on_connection_thread() -> None:
            if self._channel.is_open:
                action()

        try:
            self._connection.add_callback_threadsafe(on_connection_thread)
        except AMQPError:
            log.info("delivery_lost_with_its_connection", tag=self._tag)


class Consumer:
    """Consumes one queue and comes back after every failure of the broker.

    ``on_delivery`` is called on the thread that calls :meth:`run` and must return at once (hand the
    work to a pool); ``on_tick`` is called about every ``tick`` seconds, also while disconnected.
    """

    def __init__(
        self,
        url: str,
        topology: Topology,
        *,
        prefetch: int,
        timeout: float,
        name: str,
        on_delivery: Callable[[Delivery], None],
        on_tick: Callable[[], None],
        tick: float = 0.5,
    ) -> None:
        self._url = url
        self._topology = topology
        self._prefetch = prefetch
        self._timeout = timeout
        self._name = name
        self._on_delivery = on_delivery
        self._on_tick = on_tick
        self._tick = tick
        self._consuming = threading.Event()
        self._paused = threading.Event()
        self._stopped = threading.Event()

    @property
    def consuming(self) -> bool:
        """Whether the broker delivers to us right now."""
        return self._consuming.is_set()

    def pause(self) -> None:
        """Take no more messages; those in hand can still be settled."""
        self._paused.set()

    def stop(self) -> None:
        """Make :meth:`run` return soon; what is not settled goes back to the queue."""
        self._stopped.set()

    def run(self) -> None:
        """Consume until :meth:`stop`; reconnects with a growing pause of up to five seconds."""
        pause = 0.2
        while not self._stopped.is_set():
            try:
                with _connection(self._url, timeout=self._timeout, name=self._name) as connection:
                    self._consume(connection)
                    pause = 0.2
            except BrokerError as exc:
                if self._consuming.is_set():
                    pause = 0.2
                self._consuming.clear()
                log.warning("broker_lost", reason=str(exc), retry_in_s=pause)
                until = time.monotonic() + pause
                while time.monotonic() < until and not self._stopped.is_set():
                    self._on_tick()
                    time.sleep(min(self._tick, 0.1))
                pause = min(pause * 2, 5.0)
            finally:
                self._consuming.clear()

    def _consume(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        self._topology.declare(channel)
        channel.basic_qos(prefetch_count=self._prefetch)

        def deliver(
            _channel: BlockingChannel,
            method: Basic.Deliver,
            _properties: BasicProperties,
            body: bytes,
        ) -> None:
            tag = method.delivery_tag
            assert tag is not None
            self._on_delivery(Delivery(connection, channel, tag, body))

        consumer_tag: str | None = None
        if not self._paused.is_set():
            consumer_tag = channel.basic_consume(self._topology.queue, deliver)
            self._consuming.set()
            log.info("consuming", queue=self._topology.queue, prefetch=self._prefetch)
        while not self._stopped.is_set():
            if consumer_tag is not None and self._paused.is_set():
                channel.basic_cancel(consumer_tag)
                consumer_tag = None
                self._consuming.clear()
            # Wakes at once for a delivery or a settled one, and at the latest for the next tick.
            connection.process_data_events(time_limit=self._tick)
            if channel.is_closed:
                raise AMQPError("the broker closed the channel")
            if consumer_tag is not None and consumer_tag not in channel.consumer_tags:
                raise AMQPError("the broker cancelled the consumer: its queue is gone")
            self._on_tick()
        # Deliveries settled a moment ago are still callbacks: let them reach the broker.
        connection.process_data_events(time_limit=0)
