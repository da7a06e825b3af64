"""Publishing is confirmed or fails; the consumer comes back after every failure of the broker."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from pika.adapters.blocking_connection import BlockingChannel
from structlog.testing import capture_logs

from controlplane.work import amqp
from controlplane.work.spares import Spares
from tests.support import queues
from tests.support.waiting import LONG_WAIT


@pytest.fixture(autouse=True)
def _no_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection that another test has left, and room for those of this one."""
    made = Spares[amqp._Publisher](
        seconds=amqp.SPARE_SECONDS, most=8, dispose=lambda each: amqp._close(each.connection)
    )
    monkeypatch.setattr(amqp, "_spares", made)


@pytest.fixture
def topology() -> Iterator[amqp.Topology]:
    """A queue of this test's own, removed afterwards."""
    made = amqp.Topology(f"test-amqp-{uuid.uuid4().hex[:12]}")
    yield made
    queues.purge_and_delete(settings.RABBITMQ_URL, made, timeout=LONG_WAIT)


def publish(
    topology: amqp.Topology, body: bytes, url: str = "", *, timeout: float = LONG_WAIT
) -> None:
    amqp.publish(
        url or settings.RABBITMQ_URL,
        topology,
        body=body,
        message_id=body.decode(),
        kind="test",
        timeout=timeout,
    )


def wait_for(condition: Callable[[], bool], seconds: float = LONG_WAIT) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Inbox:
    """A consumer on a thread of its own, and the bodies that it acknowledged."""

    def __init__(self, url: str, topology: amqp.Topology) -> None:
        self.bodies: list[bytes] = []
        self.settle: Callable[[amqp.Delivery], None] = lambda delivery: delivery.ack()
        self.ticks = 0
        self.consumer = amqp.Consumer(
            url,
            topology,
            prefetch=10,
            timeout=LONG_WAIT,
            name="the inbox of a test",
            on_delivery=self._take,
            on_tick=self._tick,
            tick=0.05,
        )
        self._thread = threading.Thread(target=self.consumer.run)

    def _take(self, delivery: amqp.Delivery) -> None:
        self.bodies.append(delivery.body)
        self.settle(delivery)

    def _tick(self) -> None:
        self.ticks += 1

    def __enter__(self) -> Inbox:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.consumer.stop()
        self._thread.join(LONG_WAIT)
        assert not self._thread.is_alive()


class Proxy:
    """Stands between a client and the broker, and can cut every connection.

    ``said``: what clients have said. ``is_mute``: nothing that the broker says gets through.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5672)
        self._server = socket.create_server(("127.0.0.1", 0))
        port = self._server.getsockname()[1]
        self.url = url.replace(f"{self._target[0]}:{self._target[1]}", f"127.0.0.1:{port}")
        self.said = b""
        self.is_mute = False
        self._sockets: list[socket.socket] = []
        self.accepted = 0
        self.ended = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self.accepted += 1
                broker = socket.create_connection(self._target)
                self._sockets += [client, broker]
                for pump in (self._ask, self._answer):
                    threading.Thread(target=pump, args=(client, broker), daemon=True).start()

    def _ask(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self.said += data
                broker.sendall(data)
            broker.shutdown(socket.SHUT_WR)
        self.ended += 1

    def _answer(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            while data := broker.recv(65536):
                if not self.is_mute:
                    client.sendall(data)
        self.ended += 1

    def cut(self) -> None:
        """End every connection, as a broker that dies does."""
        while self._sockets:
            one = self._sockets.pop()
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy in front of the broker."""
    made = Proxy(settings.RABBITMQ_URL)
    yield made
    made.close()


def test_a_confirmed_message_is_on_the_queue(topology: amqp.Topology) -> None:
    assert depth(topology) == 0
    publish(topology, b"1")
    publish(topology, b"2")
    assert depth(topology) == 2


def depth(topology: amqp.Topology) -> int:
    return queues.depth(settings.RABBITMQ_URL, topology.queue, timeout=LONG_WAIT)


def test_messages_one_after_the_other_go_over_one_connection(
    topology: amqp.Topology, proxy: Proxy
) -> None:
    for body in (b"1", b"2", b"3"):
        publish(topology, body, proxy.url)
    assert depth(topology) == 3
    assert proxy.accepted == 1


def test_messages_at_the_same_time_are_all_on_the_queue(
    topology: amqp.Topology, proxy: Proxy
) -> None:
    bodies = [str(number).encode() for number in range(48)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda body: publish(topology, body, proxy.url), bodies))
    assert depth(topology) == 48
    assert proxy.accepted < 48


def test_a_message_is_on_the_queue_when_the_connection_of_the_last_one_was_cut(
    topology: amqp.Topology, proxy: Proxy
) -> None:
    publish(topology, b"1", proxy.url)
    proxy.cut()
    publish(topology, b"2", proxy.url)
    assert depth(topology) == 2
    assert proxy.accepted == 2


def test_a_message_is_on_the_queue_when_that_was_removed_after_the_last_one(
    topology: amqp.Topology,
) -> None:
    publish(topology, b"1")
    queues.purge_and_delete(settings.RABBITMQ_URL, topology, timeout=LONG_WAIT)
    publish(topology, b"2")
    assert depth(topology) == 1


def test_a_connection_that_cannot_publish_is_an_error_also_behind_one_that_could(
    topology: amqp.Topology, proxy: Proxy
) -> None:
    publish(topology, b"1", proxy.url)
    proxy.close()
    with pytest.raises(amqp.BrokerError, match="cannot be reached"):
        publish(topology, b"2", proxy.url)


def test_a_connection_that_nobody_publishes_over_any_more_is_closed(
    topology: amqp.Topology, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp._spares, "_seconds", 0.05)
    publish(topology, b"1", proxy.url)
    wait_for(lambda: proxy.ended == 2)
    publish(topology, b"2", proxy.url)
    assert proxy.accepted == 2


@pytest.mark.parametrize(
    "url",
    [
        "amqp://user:hunter2@127.0.0.1:1/",
        "amqp://user:hunter2@no-such-host.invalid:5672/",
        "amqp://user:hunter2@127.0.0.1:notaport/",
    ],
)
def test_a_broker_that_is_away_is_an_error_without_credentials(
    topology: amqp.Topology, url: str
) -> None:
    for ask in (
        lambda: publish(topology, b"1", url),
        lambda: amqp.ping(url, timeout=1),
        lambda: queues.depth(url, "x", timeout=1),
    ):
        with pytest.raises(amqp.BrokerError) as failure:
            ask()
        assert "hunter2" not in str(failure.value)


def test_wrong_credentials_are_an_error_without_credentials() -> None:
    parts = urlsplit(settings.RABBITMQ_URL)
    with pytest.raises(amqp.BrokerError) as failure:
        amqp.ping(f"amqp://nobody:hunter2@{parts.hostname}:{parts.port}/", timeout=LONG_WAIT)
    assert "hunter2" not in str(failure.value)


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        started = time.monotonic()
        with pytest.raises(amqp.BrokerError):
            amqp.ping(f"amqp://a:b@127.0.0.1:{server.getsockname()[1]}/", timeout=0.5)
        assert time.monotonic() - started < LONG_WAIT


def test_a_broker_that_never_confirms_is_given_up_in_time(
    topology: amqp.Topology, proxy: Proxy
) -> None:
    calls: list[threading.Thread] = []

    class Last(amqp.Topology):
        """A queue whose declaration is the last thing that the broker answers."""

        def declare(self, channel: BlockingChannel) -> None:
            """Declare it, and hear nothing more."""
            super().declare(channel)
            proxy.is_mute = True
            calls.append(threading.current_thread())

    with pytest.raises(amqp.BrokerError, match="did not answer within 20 s"):
        publish(Last(topology.queue), b"1", proxy.url, timeout=10)
    # The call that was given up waits on, and keeps no process from ending: pika itself would wait
    # for two heartbeats, and with a broker that sends them for ever.
    assert [(each.is_alive(), each.daemon) for each in calls] == [(True, True)]


def test_each_connection_has_a_name_that_the_operator_of_the_broker_can_read(
    topology: amqp.Topology, proxy: Proxy
) -> None:
    publish(topology, b"1", proxy.url)
    amqp.ping(proxy.url, timeout=LONG_WAIT)
    with Inbox(proxy.url, topology) as inbox:
        wait_for(lambda: inbox.bodies == [b"1"])
    for name in (b"controlplane publisher", b"controlplane readiness", b"the inbox of a test"):
        assert name in proxy.said


def test_the_broker_is_told_that_a_connection_ends(
    topology: amqp.Topology, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it warns its operator of each one."""
    monkeypatch.setattr(amqp._spares, "_seconds", 0.05)
    connection_close = bytes((0, 10, 0, 50))
    publish(topology, b"1", proxy.url)
    wait_for(lambda: proxy.ended == 2)
    assert proxy.said.count(connection_close) == 1
    amqp.ping(proxy.url, timeout=LONG_WAIT)
    assert proxy.said.count(connection_close) == 2
    with Inbox(proxy.url, topology) as inbox:
        wait_for(lambda: inbox.consumer.consuming)
    assert proxy.said.count(connection_close) == 3


def test_a_call_beyond_those_that_may_wait_for_the_broker_is_refused_at_once() -> None:
    waiting = 0
    try:
        while amqp._UNDER_WAY.acquire(blocking=False):
            waiting += 1
        with pytest.raises(amqp.BrokerError, match="too many unanswered calls"):
            amqp.ping(settings.RABBITMQ_URL, timeout=LONG_WAIT)
    finally:
        for _ in range(waiting):
            amqp._UNDER_WAY.release()
    assert waiting <= 64
    amqp.ping(settings.RABBITMQ_URL, timeout=LONG_WAIT)


def test_calls_for_which_no_thread_can_be_started_fail_and_keep_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", no_more)
        for _ in range(65):
            with pytest.raises(amqp.BrokerError, match="no thread could be started"):
                amqp.ping(settings.RABBITMQ_URL, timeout=LONG_WAIT)
    amqp.ping(settings.RABBITMQ_URL, timeout=LONG_WAIT)


class Undeclared(amqp.Topology):
    """A queue that somebody deleted between its declaration and the message."""

    def declare(self, channel: BlockingChannel) -> None:
        """Declare nothing."""


def test_a_message_that_no_queue_takes_is_an_error() -> None:
    with pytest.raises(amqp.BrokerError):
        publish(Undeclared("no-such-queue"), b"1")


def test_messages_to_a_queue_that_many_declare_at_once_are_all_on_it() -> None:
    for _ in range(6):
        topology = amqp.Topology(f"test-amqp-{uuid.uuid4().hex[:12]}")
        try:
            with ThreadPoolExecutor(24) as pool:
                bodies = [str(number).encode() for number in range(24)]
                list(pool.map(partial(publish, topology, timeout=LONG_WAIT), bodies))
            assert queues.depth(settings.RABBITMQ_URL, topology.queue, timeout=30) == 24
        finally:
            queues.purge_and_delete(settings.RABBITMQ_URL, topology, timeout=30)


class Small(amqp.Topology):
    """A queue that refuses what comes while one message is on it."""

    def declare(self, channel: BlockingChannel) -> None:
        """Declare the queue alone."""
        channel.queue_declare(
            self.queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )


@pytest.fixture
def small() -> Iterator[Small]:
    made = Small(f"test-amqp-{uuid.uuid4().hex[:12]}")
    yield made
    queues.purge_and_delete(settings.RABBITMQ_URL, made, timeout=30)


def test_a_message_that_is_refused_is_sent_again(small: Small) -> None:
    publish(small, b"1")
    with ThreadPoolExecutor(1) as pool, capture_logs() as logs:
        second = pool.submit(publish, small, b"2", timeout=LONG_WAIT)
        wait_for(lambda: any(entry["event"] == "message_refused" for entry in logs), LONG_WAIT)
        assert not second.done()
        with Inbox(settings.RABBITMQ_URL, small) as inbox:
            second.result(timeout=LONG_WAIT)
            wait_for(lambda: inbox.bodies == [b"1", b"2"], LONG_WAIT)


def test_a_message_that_is_refused_for_good_is_an_error(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So long that its time is over after the first try, however much of it that one took.
    monkeypatch.setattr(amqp, "_REFUSED_PAUSE_SECONDS", (LONG_WAIT, LONG_WAIT))
    publish(small, b"1")
    with pytest.raises(amqp.BrokerError, match="NackError"):
        publish(small, b"2")


def test_a_queue_that_others_have_declared_otherwise_is_an_error_at_once(small: Small) -> None:
    publish(small, b"1")
    with capture_logs() as logs, pytest.raises(amqp.BrokerError, match="ChannelClosedByBroker"):
        publish(amqp.Topology(small.queue), b"2")
    assert not [entry for entry in logs if entry["event"] == "message_refused"]


def test_an_acknowledged_message_is_gone_and_a_rejected_one_a_dead_letter(
    topology: amqp.Topology,
) -> None:
    publish(topology, b"good")
    publish(topology, b"bad")
    with Inbox(settings.RABBITMQ_URL, topology) as inbox:
        inbox.settle = lambda d: d.ack() if d.body == b"good" else d.reject()
        wait_for(lambda: len(inbox.bodies) == 2)
        dead = topology.dead_letter_queue
        wait_for(lambda: queues.depth(settings.RABBITMQ_URL, dead, timeout=LONG_WAIT) == 1)
    assert queues.depth(settings.RABBITMQ_URL, topology.queue, timeout=LONG_WAIT) == 0


def test_a_message_is_settled_once(topology: amqp.Topology) -> None:
    publish(topology, b"1")
    with Inbox(settings.RABBITMQ_URL, topology) as inbox:

        def settle_twice(delivery: amqp.Delivery) -> None:
            delivery.ack()
            delivery.reject()
            delivery.ack()

        inbox.settle = settle_twice
        wait_for(lambda: len(inbox.bodies) == 1)
        publish(topology, b"2")
        wait_for(lambda: len(inbox.bodies) == 2)
    for queue in (topology.queue, topology.dead_letter_queue):
        assert queues.depth(settings.RABBITMQ_URL, queue, timeout=LONG_WAIT) == 0


def test_a_message_in_hand_goes_back_when_the_consumer_stops(topology: amqp.Topology) -> None:
    publish(topology, b"1")
    with Inbox(settings.RABBITMQ_URL, topology) as inbox:
        inbox.settle = lambda delivery: None
        wait_for(lambda: len(inbox.bodies) == 1)
    wait_for(lambda: queues.depth(settings.RABBITMQ_URL, topology.queue, timeout=LONG_WAIT) == 1)


def test_a_paused_consumer_takes_nothing_more(topology: amqp.Topology) -> None:
    with Inbox(settings.RABBITMQ_URL, topology) as inbox:
        wait_for(lambda: inbox.consumer.consuming)
        inbox.consumer.pause()
        wait_for(lambda: not inbox.consumer.consuming)
        publish(topology, b"1")
        ticks = inbox.ticks
        wait_for(lambda: inbox.ticks > ticks + 5)
        assert inbox.bodies == []
    assert queues.depth(settings.RABBITMQ_URL, topology.queue, timeout=LONG_WAIT) == 1


def test_a_message_in_hand_can_be_settled_while_the_consumer_is_paused(
    topology: amqp.Topology,
) -> None:
    kept: list[amqp.Delivery] = []
    publish(topology, b"1")
    with Inbox(settings.RABBITMQ_URL, topology) as inbox:
        inbox.settle = kept.append
        wait_for(lambda: len(kept) == 1)
        inbox.consumer.pause()
        wait_for(lambda: not inbox.consumer.consuming)
        ticks = inbox.ticks
        wait_for(lambda: inbox.ticks > ticks + 5)
        kept[0].ack()
    for queue in (topology.queue, topology.dead_letter_queue):
        assert queues.depth(settings.RABBITMQ_URL, queue, timeout=LONG_WAIT) == 0


def test_a_message_that_is_settled_with_the_last_breath_of_the_consumer_is_settled(
    topology: amqp.Topology,
) -> None:
    publish(topology, b"1")
    with Inbox(settings.RABBITMQ_URL, topology) as inbox:

        def settle_and_stop(delivery: amqp.Delivery) -> None:
            delivery.ack()
            inbox.consumer.stop()

        inbox.settle = settle_and_stop
        wait_for(lambda: inbox.bodies == [b"1"])
    publish(topology, b"2")
    with Inbox(settings.RABBITMQ_URL, topology) as inbox:
        wait_for(lambda: b"2" in inbox.bodies)
    assert inbox.bodies == [b"2"]


def test_a_paused_consumer_comes_back_after_the_broker_has_closed_its_channel(
    topology: amqp.Topology,
) -> None:
    kept: list[amqp.Delivery] = []
    publish(topology, b"1")
    with capture_logs() as logs, Inbox(settings.RABBITMQ_URL, topology) as inbox:
        inbox.settle = kept.append
        wait_for(lambda: len(kept) == 1)
        inbox.consumer.pause()
        wait_for(lambda: not inbox.consumer.consuming)
        kept[0].ack()
        # What is acknowledged again is unknown to the broker, which then closes the channel.
        amqp.Delivery(kept[0]._connection, kept[0]._channel, kept[0]._tag, b"1").ack()
        wait_for(lambda: any(each["event"] == "broker_lost" for each in logs))


def test_the_consumer_comes_back_after_its_connection_is_cut(
    topology: amqp.Topology, proxy: Proxy
) -> None:
    with Inbox(proxy.url, topology) as inbox:
        for body in (b"0", b"1", b"2"):
            wait_for(lambda: inbox.consumer.consuming)
            publish(topology, body)
            wait_for(partial(inbox.bodies.__contains__, body))
            proxy.cut()


def test_a_message_in_hand_is_delivered_again_after_a_cut(
    topology: amqp.Topology, proxy: Proxy
) -> None:
    kept: list[amqp.Delivery] = []
    with Inbox(proxy.url, topology) as inbox:
        inbox.settle = kept.append
        publish(topology, b"1")
        wait_for(lambda: len(kept) == 1)
        proxy.cut()
        wait_for(lambda: len(kept) == 2)
        kept[0].ack()  # of the connection that is gone: changes nothing, and fails nobody
        kept[1].ack()
        wait_for(
            lambda: queues.depth(settings.RABBITMQ_URL, topology.queue, timeout=LONG_WAIT) == 0
        )
    assert inbox.bodies == [b"1", b"1"]


def test_all_queues_outlive_a_restart_of_the_broker(topology: amqp.Topology) -> None:
    publish(topology, b"1")
    quorum = {"x-queue-type": "quorum"}
    letters = {
        "x-dead-letter-exchange": topology.dead_letter_exchange,
        "x-dead-letter-routing-key": topology.dead_letter_queue,
    }
    with amqp._connection(settings.RABBITMQ_URL, timeout=LONG_WAIT, name="test") as connection:
        # The broker refuses to declare what is there with other arguments.
        channel = connection.channel()
        channel.exchange_declare(topology.dead_letter_exchange, "direct", durable=True)
        channel.queue_declare(topology.queue, durable=True, arguments=quorum | letters)
        limit = {"x-max-length": 10_000}
        channel.queue_declare(topology.dead_letter_queue, durable=True, arguments=quorum | limit)


def test_a_message_that_is_given_back_is_delivered_again(topology: amqp.Topology) -> None:
    publish(topology, b"1")
    with Inbox(settings.RABBITMQ_URL, topology) as inbox:
        inbox.settle = lambda each: each.ack() if len(inbox.bodies) > 1 else each.requeue()
        wait_for(lambda: len(inbox.bodies) == 2)
    dead = topology.dead_letter_queue
    assert queues.depth(settings.RABBITMQ_URL, dead, timeout=LONG_WAIT) == 0


def test_the_consumer_waits_longer_after_each_failure_and_begins_anew_once_it_has_consumed(
    topology: amqp.Topology, proxy: Proxy
) -> None:
    def pauses() -> list[float]:
        return [each["retry_in_s"] for each in logs if each["event"] == "broker_lost"]

    with capture_logs() as logs:
        with Inbox("amqp://a:b@127.0.0.1:1/", topology):
            wait_for(lambda: len(pauses()) >= 3)
        assert pauses()[:3] == [0.2, 0.4, 0.8]
        logs.clear()
        with Inbox(proxy.url, topology) as inbox:
            wait_for(lambda: inbox.consumer.consuming)
            proxy.close()
            wait_for(lambda: len(pauses()) >= 2)
        assert pauses()[:2] == [0.2, 0.4]


def test_the_consumer_comes_back_after_its_queue_is_deleted(topology: amqp.Topology) -> None:
    with capture_logs() as logs, Inbox(settings.RABBITMQ_URL, topology) as inbox:
        wait_for(lambda: inbox.consumer.consuming)
        queues.purge_and_delete(settings.RABBITMQ_URL, topology, timeout=LONG_WAIT)
        # The broker may tell nobody of a queue that is made again at once.
        wait_for(lambda: any(each["event"] == "broker_lost" for each in logs))
        publish(topology, b"1")
        wait_for(lambda: inbox.bodies == [b"1"])


def test_a_consumer_without_deliveries_waits_for_its_ticks(topology: amqp.Topology) -> None:
    with Inbox(settings.RABBITMQ_URL, topology) as inbox:
        wait_for(lambda: inbox.consumer.consuming and inbox.ticks > 5)
        began, ticks = time.monotonic(), inbox.ticks
        wait_for(lambda: time.monotonic() - began > 0.4)
        # A slow machine ticks less often, and none ticks more often.
        assert inbox.ticks - ticks <= (time.monotonic() - began) / 0.05 + 2


def test_the_consumer_keeps_ticking_and_stops_while_the_broker_is_away(
    topology: amqp.Topology,
) -> None:
    with Inbox("amqp://a:b@127.0.0.1:1/", topology) as inbox:
        wait_for(lambda: inbox.ticks > 5)
        assert not inbox.consumer.consuming
