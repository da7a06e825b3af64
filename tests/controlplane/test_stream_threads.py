"""Streams whose clients send something, too, as the threads of a process take it."""

from __future__ import annotations

import socket
import threading

import pytest

from controlplane.errors import ControlPlaneError
from controlplane.http.stream_answers import Duplex, Piece
from controlplane.serving.connections import Outgoing
from controlplane.serving.stream_threads import Feed, Puller
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
        puller.stop()
        puller.join(SECONDS)
