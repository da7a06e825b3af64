"""The clients of a gunicorn worker: one loop reads and writes for all of them.

gunicorn's own threaded worker reads and writes in its threads, so as many clients as there are
threads stop it by being slow. Here each client has time limits, and the loop hands a request on
when all of it is there. When there are too many connections, of one address or altogether, the one
that has waited longest makes room.
"""

from __future__ import annotations

import errno
import selectors
import socket
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

from gunicorn.workers.gthread import ThreadWorker

from controlplane import settings
from controlplane.errors import RequestTimeout, ServiceUnavailable
from controlplane.http.body_limits import body_limit, is_spooled
from controlplane.http.spooled_body import SpooledBody
from controlplane.serving.client_limits import Limits
from controlplane.serving.connections import Connection, Phase
from controlplane.serving.framing import Incoming
from controlplane.serving.short_answers import send_at_once, send_last
from controlplane.serving.streaming import Streams

LINGER_SECONDS = 2.0

_ACCEPTED_AT_ONCE = 64
_RECEIVED_BYTES = 64 * 1024
_RECEIVED_OF_LARGE_BYTES = 256 * 1024
"""As much is made room for once so much of a body has come."""
_PROGRESS_BYTES = 4 * 1024 * 1024
"""How much of a body has to come within the time limit of a body."""


class ClientLoop(ThreadWorker, ABC):  # type: ignore[misc]  # gunicorn has no types
    """Accepts connections, reads requests and writes answers, within the limits of clients.

    A subclass says what is done with a request that is there.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connections: dict[Connection, None] = {}
        self.limits = Limits(self.cfg.threads)
        self.streams = Streams(most=self.limits.most, most_of_one=self.limits.most_of_one)

    @abstractmethod
    def serve(self, connection: Connection) -> None:
        """Answer a request that is there."""

    @abstractmethod
    def refuse_waiting(self, connection: Connection) -> None:
        """Refuse a request that has waited for a thread for too long."""

    @abstractmethod
    def leave_queue(self, connection: Connection) -> None:
        """Forget a request that waits for a thread: its connection closes."""

    # ------------------------------------------------------------------ accepting

    def accept(self, listener: socket.socket) -> None:
        """Take the connections that wait at ``listener``."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, client = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._make_room(list(self.connections))
                elif error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EWOULDBLOCK):
                    raise
                return
            self._admit(sock, client, listener.getsockname())

    def _admit(self, sock: socket.socket, client: Any, server: Any) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(sock, client, server, self._wake)
        connection.sock.admit_stream = partial(self.streams.admit, connection)
        crowded = self.limits.crowded(connection, self.connections)
        others = [each for each in self.connections if each.address == crowded]
        if crowded and not self._make_room(others):
            self.limits.closed["refused"] += 1
            told = "There are too many connections; try again later."
            send_last(sock, ServiceUnavailable(told, code="too-many-connections"))
            sock.close()
            return
        self.connections[connection] = None
        self._expect(connection, b"")

    def _make_room(self, among: list[Connection]) -> bool:
        """Close the one that nobody is sending to and that has waited longest; False: none."""
        longest = self.limits.longest_waiting(among)
        if longest is None:
            return False
        self.close_connection(longest)
        return True

    # ------------------------------------------------------------------ reading

    def _expect(self, connection: Connection, surplus: bytes) -> None:
        """Wait for a request, which may have come with the one before."""
        connection.incoming = Incoming(body_limit, _spool)
        connection.counted = 0
        connection.enter(Phase.READING, self.limits.head_seconds)
        self._watch(connection, selectors.EVENT_READ)
        if surplus:
            self._take(connection, surplus)

    def _on_ready(self, connection: Connection) -> None:
        if connection.phase in (Phase.SERVING, Phase.FLUSHING):
            self.flush(connection)
            return
        if connection.phase is Phase.STREAMING:
            if connection.sock.pending:
                self.flush(connection)
            if not (connection.open and self.streams.reads(connection)):
                return
        try:
            large = len(connection.incoming.body) >= _RECEIVED_OF_LARGE_BYTES
            data = connection.socket.recv(_RECEIVED_OF_LARGE_BYTES if large else _RECEIVED_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close_connection(connection)
        elif connection.phase is Phase.STREAMING:
            self.streams.received(connection, data)
            self._watch_stream(connection)
        elif connection.phase is not Phase.LINGERING:
            if connection.phase is Phase.IDLE:
                connection.enter(Phase.READING, self.limits.head_seconds)
            self._take(connection, data)

    def _take(self, connection: Connection, data: bytes) -> None:
        incoming = connection.incoming
        headless = incoming.head is None
        connection.surplus = incoming.feed(data)
        if incoming.complete:
            connection.enter(Phase.SERVING, 0)
            self._watch(connection, 0)
            self.serve(connection)
        elif headless and incoming.head is not None:
            connection.enter(Phase.READING, self.limits.body_seconds)
            if incoming.expects_continue:
                send_at_once(connection.socket, b"HTTP/1.1 100 Continue\r\n\r\n")
        elif len(incoming.body) - connection.counted >= _PROGRESS_BYTES:
            # A file may take long, as long as it keeps coming.
            connection.counted = len(incoming.body)
            connection.enter(Phase.READING, self.limits.body_seconds)

    # ------------------------------------------------------------------ writing

    def _wake(self, connection: Connection) -> None:
        """Have the loop send what is left. Called by threads, and by the loop itself."""
        self.method_queue.defer(self.flush, connection)

    def flush(self, connection: Connection) -> None:
        """Send what the client takes now, and go on when that is all."""
        if not connection.open:
            return
        connection.sock.flush()
        if connection.phase is Phase.STREAMING:
            self._watch_stream(connection)
            if not connection.sock.pending:
                self.streams.drained(connection)
        elif connection.sock.pending:
            self._watch(connection, selectors.EVENT_WRITE)
        elif connection.phase is Phase.SERVING:
            self._watch(connection, 0)
        elif connection.phase is Phase.FLUSHING:
            self._go_on(connection)

    def _watch_stream(self, connection: Connection) -> None:
        # Where nothing is asked for any more, reading shows that the client is gone.
        reading = selectors.EVENT_READ if self.streams.reads(connection) else 0
        writing = selectors.EVENT_WRITE if connection.sock.pending else 0
        self._watch(connection, reading | writing)

    def _go_on(self, connection: Connection) -> None:
        if not connection.kept:
            self.linger(connection)
        elif connection.surplus:
            self._expect(connection, connection.surplus)
        else:
            self._expect(connection, b"")
            connection.enter(Phase.IDLE, self.cfg.keepalive if self.alive else LINGER_SECONDS)

    def linger(self, connection: Connection) -> None:
        """Let the client read to the end: closing with something unread would cut it off."""
        try:
            connection.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close_connection(connection)
            return
        connection.enter(Phase.LINGERING, LINGER_SECONDS)
        self._watch(connection, selectors.EVENT_READ)

    # ------------------------------------------------------------------ limits

    def end_late(self, now: float) -> None:
        """Close what takes too long, too many threads or too much memory."""
        for connection in list(self.connections):
            phase = connection.phase
            if phase in (Phase.SERVING, Phase.FLUSHING, Phase.STREAMING):
                if self.limits.is_slow_reader(connection, now):
                    self.limits.closed["slow_reader"] += 1
                    self.streams.say_farewell(connection, slow=True)
                    self.cut(connection)
                elif phase is Phase.STREAMING and connection.sock.broken:
                    self.close_connection(connection)  # one that is not read from
            elif phase is Phase.QUEUED and now >= connection.deadline:
                self.refuse_waiting(connection)
            elif now >= connection.deadline:
                if phase is Phase.READING:
                    self.limits.closed["slow_writer"] += 1
                    if connection.incoming.begun:
                        late = RequestTimeout("The request did not arrive in time.")
                        send_last(connection.socket, late)
                self.close_connection(connection)
        for connection in self.limits.keeping_threads(self.connections, now):
            self.cut(connection)
        for connection in self.limits.keeping_memory(self.connections):
            self.cut(connection)

    # ------------------------------------------------------------------ ending

    def cut(self, connection: Connection) -> None:
        """Give a connection up, whatever it is about; a thread that answers it ends by itself."""
        connection.sock.give_up()
        self.close_connection(connection)

    def close_connection(self, connection: Connection) -> None:
        if connection.open:
            connection.open = False
            if connection.sock.timed_out:
                # The kernel was quicker than the loop, which would have said so.
                self.limits.closed["slow_reader"] += 1
            if connection.phase is Phase.QUEUED:
                self.leave_queue(connection)
            if connection.phase is not Phase.SERVING:  # a thread may read its body
                connection.incoming.discard()
            self.streams.release(connection)
            self._watch(connection, 0)
            connection.sock.give_up()
            connection.socket.close()
            del self.connections[connection]

    def _watch(self, connection: Connection, events: int) -> None:
        if events == connection.watched:
            return
        if not events:
            self.poller.unregister(connection.socket)
        elif connection.watched:
            self.poller.modify(connection.socket, events, self._callback(connection))
        else:
            self.poller.register(connection.socket, events, self._callback(connection))
        connection.watched = events

    def _callback(self, connection: Connection) -> Any:
        # One event may close a connection that another one of the same round is about.
        return lambda _: self._on_ready(connection) if connection.open else None


def _spool(path: str) -> SpooledBody | None:
    """Return what keeps a body that is no matter for memory."""
    return SpooledBody(settings.SVC_UPLOAD_DIR) if is_spooled(path) else None
