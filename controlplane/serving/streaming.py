"""The streams of one gunicorn worker: how many there may be, and their connections' way here.

A thread sends the head of a stream's answer and is free again; its connection belongs to the loop
from then on, and what is sent comes from the puller.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from controlplane import settings
from controlplane.errors import ControlPlaneError, RequestTimeout
from controlplane.http.stream_answers import Duplex, StreamAnswer
from controlplane.serving.connections import Connection, Outgoing
from controlplane.serving.stream_threads import Feed, Puller

KERNEL_BYTES = 64 * 1024
"""How much the kernel is asked to keep for a reader; it keeps megabytes otherwise."""

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Streams:
    """The streams that a worker serves, and the room that there is for more.

    Streams have half of the connections that everybody, and that one address, may have: the other
    half is there for requests. An owner whom a proxy names has as many as an address.
    """

    def __init__(self, *, most: int, most_of_one: int) -> None:
        self._most = max(1, most // 2)
        self._most_of_one = max(1, most_of_one // 2)
        self._admitted: dict[Connection, str] = {}
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._feeds: dict[Connection, Feed] = {}
        self._puller = Puller()

    def admit(self, connection: Connection, whose: str) -> bool:
        """Take room for a stream on ``connection``; False when there is none. In any thread.

        ``whose`` share it is: an owner's, or an address's; nobody's when it is empty.
        """
        with self._lock:
            if connection in self._admitted:
                return True
            if len(self._admitted) >= self._most:
                return False
            if whose and self._counts[whose] >= self._most_of_one:
                return False
            self._admitted[connection] = whose
            self._counts[whose] += 1
            return True

    def release(self, connection: Connection) -> None:
        """Give back the room of a connection, and read its stream no more."""
        feed = self._feeds.pop(connection, None)
        if feed is not None:
            self._puller.remove(feed)
        with self._lock:
            whose = self._admitted.pop(connection, None)
            if whose is not None:
                self._counts[whose] -= 1
                if not self._counts[whose]:
                    del self._counts[whose]

    def begin(self, connection: Connection, ended: Callable[[], None]) -> None:
        """Read the stream whose head was sent; ``ended`` is called when its source has ended."""
        source = connection.sock.source
        assert source is not None
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        # A client that is gone without a word is noticed by the kernel; one that takes nothing is
        # cut off by the loop before, with a word.
        connection.socket.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2 * settings.SVC_API_WRITE_TIMEOUT_MS
        )
        feed = self._feeds[connection] = Feed(source, connection.sock, ended)
        self._puller.add(feed)

    def received(self, connection: Connection, data: bytes) -> None:
        """Take what a client has sent behind the head of its request."""
        feed = self._feeds.get(connection)
        # Of most streams it is nothing that we asked for.
        if feed is not None and isinstance(feed.source, Duplex):
            feed.source.receive(data)
            self._puller.heard(feed)

    def reads(self, connection: Connection) -> bool:
        """Tell whether more is to be read of a client now."""
        feed = self._feeds.get(connection)
        return feed is None or self._puller.reads(feed)

    def drained(self, connection: Connection) -> None:
        """Go on with a stream whose client has taken everything."""
        feed = self._feeds.get(connection)
        if feed is not None:
            self._puller.drained(feed)

    def end(self, connection: Connection) -> bool:
        """Read a stream no more; False while something of it is on its way: call it again then."""
        feed = self._feeds.get(connection)
        return feed is None or self._puller.end(feed)

    def look(self, now: float) -> None:
        """Do what is due by the clock."""
        self._puller.look(now)

    def say_farewell(self, connection: Connection, *, slow: bool) -> None:
        """Say why a stream ends before its source does, if the client takes that at once."""
        feed = self._feeds.get(connection)
        if feed is None:
            return
        self._puller.remove(feed)
        error: ControlPlaneError | None = None
        if slow:
            error = RequestTimeout(
                "The events were not read in time; reconnect after the last one received.",
                code="slow-reader",
            )
        if feed.whole or connection.sock.pending:
            connection.sock.last_words(feed.source, error)

    def connections(self) -> list[Connection]:
        """Return the connections of all streams."""
        return list(self._feeds)

    def stop(self) -> None:
        """End the threads, once they have taken what clients have sent."""
        self._puller.stop()

    def join(self, seconds: float) -> None:
        """Wait for the threads, so long at the most."""
        self._puller.join(seconds)


def taking_streams(serve: Application) -> Application:
    """Let ``serve`` answer with streams: their heads are sent as ever, the rest is the loop's."""

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        answer = serve(environ, start_response)
        if not isinstance(answer, StreamAnswer):
            return answer
        response = start_response.__self__  # gunicorn's
        # What has no length and is not in chunks ends with its connection.
        response.chunked = False
        response.force_close()
        way = environ["gunicorn.socket"]
        assert isinstance(way, Outgoing)
        if environ["REQUEST_METHOD"] != "HEAD":
            way.source = answer.source
        return _Head(answer)

    return application


class _Head:
    """A body of nothing, so that gunicorn sends the head; it closes the answer."""

    def __init__(self, answer: StreamAnswer) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        yield b""

    def close(self) -> None:
        """Tell Django that the request is over."""
        self._answer.close()
