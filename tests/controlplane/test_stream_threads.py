"""Streams as the threads of a process read them, and what their clients send them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from controlplane.errors import Conflict, ControlPlaneError
from controlplane.http.stream_answers import LOOK_SECONDS, Duplex, Piece, Source
from controlplane.serving.connections import Outgoing
from controlplane.serving.stream_threads import Feed, Puller
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db(transaction=True)

SECONDS = LONG_WAIT


class Gated(Duplex):
    """A source that has room again when it is let go on, in the middle of taking."""

    def __init__(self) -> None:
        self.room = True
        self.taking = threading.Event()
        self.go_on = threading.Event()

    @property
    def has_room(self) -> bool:
        return self.room

    def receive(self, data: bytes) -> None:
        self.room = False

    def take(self) -> float:
        self.taking.set()
        assert self.go_on.wait(SECONDS)
        self.room = True
        return 0.0

    def read(self, room: int, since: float) -> Piece:
        return Piece()

    def heartbeat(self) -> bytes:
        return b""

    def farewell(self, error: ControlPlaneError | None) -> bytes:
        return b""


def end(puller: Puller) -> None:
    """End all of its threads; the one that listens has a connection to the database."""
    puller.stop()
    puller.join(SECONDS)
    puller._threads[0].join(SECONDS)


def test_a_client_is_read_from_again_whose_input_is_taken_while_the_loop_stops_reading() -> None:
    ours, theirs = socket.socketpair()
    woken = threading.Event()
    puller, source = Puller(), Gated()
    feed = Feed(source, Outgoing(ours, woken.set), lambda: None)
    with ours, theirs:
        assert puller.reads(feed)
        puller.add(feed)
        assert source.taking.wait(SECONDS)
        # The loop reads what fills it up, just before a thread makes room.
        source.receive(b"more")
        assert not puller.reads(feed)
        source.go_on.set()
        assert woken.wait(SECONDS)
        assert puller.reads(feed)
        puller.remove(feed)
        end(puller)


HALF = b"data: half of an event"
BEAT = b": nothing new\n\n"
FAREWELL = b"event: error\n\n"
SILENT = LOOK_SECONDS + 1


class Watched(Source):
    """A source that says what it is told to, and notes how many threads are in it."""

    def __init__(self, *pieces: Piece) -> None:
        self.pieces = list(pieces)
        self.inside = self.most = self.readers = self.reads = 0
        self.reading = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.while_beating: Callable[[], object] = lambda: None

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            yield
        finally:
            self.inside -= 1

    def read(self, room: int, since: float) -> Piece:
        with self.entered():
            self.reads += 1
            self.readers += 1
            self.reading.set()
            if self.readers == 1:  # a second one is noted, and holds up nobody
                assert self.go_on.wait(SECONDS)
            self.readers -= 1
            return self.pieces.pop(0) if self.pieces else Piece()

    def heartbeat(self) -> bytes:
        with self.entered():
            self.while_beating()
            return BEAT

    def farewell(self, error: ControlPlaneError | None) -> bytes:
        return FAREWELL


class Streamed:
    """One stream of a puller, and what its client has received of it."""

    def __init__(self, puller: Puller, source: Watched) -> None:
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.client.settimeout(SECONDS)
        self.source, self.puller, self.ours = source, puller, ours
        self.ended = threading.Event()
        self.woken = threading.Event()
        self.way = Outgoing(ours, self.woken.set)
        self.feed = Feed(source, self.way, self.ended.set)
        self.added_at = self.feed.since
        puller.add(self.feed)

    def received(self, data: bytes) -> bool:
        """Tell whether this is what comes next."""
        return self.client.recv(len(data), socket.MSG_WAITALL) == data

    @property
    def said_nothing(self) -> bool:
        self.client.setblocking(False)
        try:
            return not self.client.recv(1)
        except BlockingIOError:
            return True
        finally:
            self.client.settimeout(SECONDS)

    def close(self) -> None:
        self.puller.remove(self.feed)
        self.client.close()
        self.ours.close()


@contextmanager
def streams(*sources: Watched) -> Iterator[tuple[Puller, list[Streamed]]]:
    """Read these sources; nothing has them read again but what a test does."""
    puller = Puller()
    opened = [Streamed(puller, source) for source in sources]
    first = opened[0]
    try:
        # The thread that listens has all of them read, once, when it begins.
        eventually(lambda: first.feed.since > first.added_at, what="it listens", every=0.002)
        yield puller, opened
    finally:
        for each in opened:
            each.close()
        end(puller)


def is_read(puller: Puller, stream: Streamed) -> None:
    """Have a stream read again, behind everything that is queued, and wait for that."""
    stream.source.reading.clear()
    puller.heard(stream.feed)
    assert stream.source.reading.wait(SECONDS)


def is_idle(stream: Streamed) -> None:
    """Wait until nobody reads a stream, and none is to."""
    feed = stream.feed

    def idle() -> bool:
        with stream.puller._work:  # not between the one and the other
            return not (feed.queued or feed.reading)

    eventually(idle, what="nobody reads it", every=0.002)


def look_while_both_are_to_be_read(puller: Puller, silent: Streamed, begun: Streamed) -> None:
    """Look at the clock; the heartbeat of the first takes until a thread has come by it.

    They are queued in this order, and the second one, being in the middle of an event, has none.
    """
    assert begun.received(HALF)
    is_idle(silent)
    is_idle(begun)
    begun.source.reading.clear()
    silent.source.while_beating = lambda: begun.source.reading.wait(SECONDS)
    puller.look(time.monotonic() + SILENT)


def test_a_silent_stream_is_not_read_while_its_heartbeat_is_sent() -> None:
    silent, begun = Watched(), Watched(Piece(HALF, whole=False))
    with streams(silent, begun) as (puller, (first, second)):
        is_idle(first)
        reads = silent.reads
        look_while_both_are_to_be_read(puller, first, second)
        assert first.received(BEAT)
        # It is read all the same, after that.
        is_idle(first)
        assert (silent.reads, silent.most) == (reads + 1, 1)
        is_idle(second)
        assert second.said_nothing  # in the middle of an event


def test_a_stream_is_read_by_one_thread_whatever_wakes_it_behind_a_heartbeat() -> None:
    silent, begun = Watched(), Watched(Piece(HALF, whole=False))
    with streams(silent, begun) as (puller, (first, second)):
        is_idle(first)
        silent.go_on.clear()
        silent.reading.clear()
        look_while_both_are_to_be_read(puller, first, second)
        assert silent.reading.wait(SECONDS)
        puller.heard(first.feed)
        is_read(puller, second)
        silent.go_on.set()
        is_idle(first)
        assert silent.most == 1


def test_a_stream_that_is_read_whenever_the_clock_is_looked_at_has_its_heartbeats() -> None:
    busy = Watched()
    with streams(busy) as (puller, (stream,)):
        is_idle(stream)
        busy.go_on.clear()
        is_read(puller, stream)
        stream.feed.spoke_at -= SILENT
        puller.look(time.monotonic())
        assert stream.said_nothing
        busy.go_on.set()
        assert stream.received(BEAT)
        # And not one for each time that it is read.
        is_idle(stream)
        is_read(puller, stream)
        is_idle(stream)
        assert stream.said_nothing
        assert busy.most == 1


def test_a_stream_has_heartbeats_while_all_threads_wait() -> None:
    stuck, stuck_too, waits = Watched(), Watched(), Watched()
    with streams(waits, stuck, stuck_too) as (puller, (stream, *others)):
        is_idle(stream)
        for each in others:
            is_idle(each)
            each.source.go_on.clear()
            is_read(puller, each)
        reads = waits.reads
        puller.look(time.monotonic() + SILENT)
        assert stream.received(BEAT)
        assert waits.reads == reads
        for each in others:
            each.source.go_on.set()
        is_idle(stream)
        assert waits.reads == reads + 1


def test_nothing_more_is_read_while_a_client_has_to_take_what_was_read_before() -> None:
    large = Piece(b"x" * (4 << 20), more=True)
    source = Watched(large, Piece(b"end", ended=True))
    with streams(source) as (puller, (stream,)):
        assert stream.woken.wait(SECONDS)
        is_idle(stream)
        # The loop looked before the piece was there, and says so only now.
        puller.drained(stream.feed)
        is_idle(stream)
        assert source.reads == 1
        while stream.way.pending:
            stream.client.recv(1 << 20)
            stream.way.flush()
        puller.drained(stream.feed)
        assert stream.ended.wait(SECONDS)
        assert source.reads == 2


def test_a_stream_that_fails_in_the_middle_of_an_event_says_nothing_more() -> None:
    class Failing(Watched):
        def read(self, room: int, since: float) -> Piece:
            if not self.pieces:
                raise Conflict("It ended.", code="run-ended")
            return self.pieces.pop(0)

    half, whole = Piece(HALF, whole=False, more=True), Piece(BEAT, more=True)
    for piece, farewell in ((half, b""), (whole, FAREWELL)):
        with streams(Failing(piece)) as (_, (stream,)):
            assert stream.ended.wait(SECONDS)
            assert stream.received(piece.data + farewell)
            assert stream.said_nothing
