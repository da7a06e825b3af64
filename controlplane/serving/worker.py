"""The gunicorn worker of the API: threads never wait for a client.

gunicorn's own threaded worker reads and writes in its threads, so as many clients as there are
threads stop it by being slow. Here one loop reads and writes for all clients, each within time
limits, and a thread gets a request when all of it is there. When there are too many connections,
of one address or altogether, the one that has waited longest makes room.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections import Counter, deque
from concurrent.futures import Future
from functools import partial
from http import HTTPStatus
from typing import Any

import structlog
from gunicorn import http
from gunicorn.http.errors import NoMoreData
from gunicorn.workers.gthread import ThreadWorker

from controlplane import settings
from controlplane.errors import BadRequest, RequestTimeout, ServiceUnavailable
from controlplane.http.body_limits import body_limit, is_spooled
from controlplane.http.spooled_body import SpooledBody
from controlplane.security.addresses import is_trusted_proxy
from controlplane.serving.connections import Connection, Phase
from controlplane.serving.framing import Incoming
from controlplane.serving.lanes import Lanes, Place, lane_of
from controlplane.serving.short_answers import refusal_of, send_at_once, send_last
from controlplane.serving.streaming import Application, Streams, taking_streams

log = structlog.get_logger(__name__)

_ACCEPTED_AT_ONCE = 64
_RECEIVED_BYTES = 64 * 1024
_RECEIVED_OF_LARGE_BYTES = 256 * 1024
"""As much is made room for once so much of a body has come."""
_LOOK_SECONDS = 0.25
_REPORT_SECONDS = 10.0
_LINGER_SECONDS = 2.0
_STALLED_SECONDS = 0.25
_PROGRESS_BYTES = 4 * 1024 * 1024
"""How much of a body has to come within the time limit of a body."""
_QUEUED_SECONDS = 60.0
"""How long a call of a workspace's files may wait for a thread."""
_QUEUE_AGAIN_SECONDS = 5
_HALF_CLOSED = BadRequest(
    "Nothing was done: the client ended its side of the connection while the call waited for its "
    "turn. Keep it open until the answer is there.",
    code="connection-half-closed",
)
_HELD_BYTES = 256 * 1024 * 1024
"""What all connections of a process may keep in memory."""


class RequestWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """Gives threads complete requests, and takes their answers to clients however slow."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connections: dict[Connection, None] = {}
        self.looked_at = self.reported_at = 0.0
        self.closed: Counter[str] = Counter()
        self.most = _share(settings.SVC_API_MAX_CONNECTIONS)
        self.most_of_one = _share(settings.SVC_API_MAX_CONNECTIONS_PER_ADDRESS)
        self.head_seconds = settings.SVC_API_HEADER_TIMEOUT_MS / 1000
        self.body_seconds = settings.SVC_API_BODY_TIMEOUT_MS / 1000
        self.write_seconds = settings.SVC_API_WRITE_TIMEOUT_MS / 1000
        self.lanes: Lanes[Connection] = Lanes(self.cfg.threads)
        self.streams = Streams(most=self.most, most_of_one=self.most_of_one)

    def load_wsgi(self) -> None:
        """Load the application, which may answer with streams."""
        super().load_wsgi()
        self.wsgi: Application = taking_streams(self.wsgi)

    # ------------------------------------------------------------------ the loop

    def run(self) -> None:
        """Serve until told to stop; then finish what has begun, within ``graceful_timeout``."""
        fileno = self.method_queue.fileno()
        self.poller.register(fileno, selectors.EVENT_READ, self.method_queue.run_callbacks)
        self.set_accept_enabled(True)
        while self.alive and self.is_parent_alive():
            self._turn()
        self.set_accept_enabled(False)
        end = time.monotonic() + self.cfg.graceful_timeout
        for connection in list(self.connections):
            if connection.phase in (Phase.IDLE, Phase.READING) and not connection.incoming.begun:
                connection.enter(Phase.IDLE, _LINGER_SECONDS)
        while self.connections and time.monotonic() < end:
            self._end_streams()
            self._turn()
        self.streams.stop()
        self.lanes.stop()
        self.streams.join(max(0.0, end - time.monotonic()))
        for connection in list(self.connections):
            self._close(connection)
        self.tpool.shutdown(wait=False)
        self.poller.close()
        self.method_queue.close()
        for listener in self.sockets:
            listener.close()

    def _turn(self) -> None:
        self.notify()
        self.wait_for_and_dispatch_events(timeout=_LOOK_SECONDS)
        now = time.monotonic()
        if now - self.looked_at >= _LOOK_SECONDS:
            self.looked_at = now
            self._end_late(now)
            self.streams.look(now)
            self._free_threads(now)
            self._free_memory()
            self._report(now)

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
        counts = Counter(each.address for each in self.connections)
        shared = is_trusted_proxy(client[0])  # many people's connections
        if counts[connection.address] >= self.most_of_one and not shared:
            crowded = connection.address
        elif len(self.connections) >= self.most:
            crowded = counts.most_common(1)[0][0]
        else:
            crowded = ""
        others = [each for each in self.connections if each.address == crowded]
        if crowded and not self._make_room(others):
            self.closed["refused"] += 1
            told = "There are too many connections; try again later."
            send_last(sock, ServiceUnavailable(told, code="too-many-connections"))
            sock.close()
            return
        self.connections[connection] = None
        self._expect(connection, b"")

    def _make_room(self, among: list[Connection]) -> bool:
        """Close the one that nobody is sending to and that has waited longest; False: none."""
        waiting = [each for each in among if each.phase not in (Phase.SERVING, Phase.STREAMING)]
        if not waiting:
            return False
        self.closed["evicted"] += 1
        self._close(min(waiting, key=lambda each: (each.phase.value, each.since)))
        return True

    # ------------------------------------------------------------------ reading

    def _expect(self, connection: Connection, surplus: bytes) -> None:
        """Wait for a request, which may have come with the one before."""
        connection.incoming = Incoming(body_limit, _spool)
        connection.counted = 0
        connection.enter(Phase.READING, self.head_seconds)
        self._watch(connection, selectors.EVENT_READ)
        if surplus:
            self._take(connection, surplus)

    def _on_ready(self, connection: Connection) -> None:
        if connection.phase in (Phase.SERVING, Phase.FLUSHING):
            self._flush(connection)
            return
        if connection.phase is Phase.STREAMING:
            if connection.sock.pending:
                self._flush(connection)
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
            self._close(connection)
        elif connection.phase is Phase.STREAMING:
            self.streams.received(connection, data)
            self._watch_stream(connection)
        elif connection.phase is not Phase.LINGERING:
            if connection.phase is Phase.IDLE:
                connection.enter(Phase.READING, self.head_seconds)
            self._take(connection, data)

    def _take(self, connection: Connection, data: bytes) -> None:
        incoming = connection.incoming
        headless = incoming.head is None
        connection.surplus = incoming.feed(data)
        if incoming.complete:
            connection.enter(Phase.SERVING, 0)
            self._watch(connection, 0)
            self._serve(connection)
        elif headless and incoming.head is not None:
            connection.enter(Phase.READING, self.body_seconds)
            if incoming.expects_continue:
                send_at_once(connection.socket, b"HTTP/1.1 100 Continue\r\n\r\n")
        elif len(incoming.body) - connection.counted >= _PROGRESS_BYTES:
            # A file may take long, as long as it keeps coming.
            connection.counted = len(incoming.body)
            connection.enter(Phase.READING, self.body_seconds)

    # ------------------------------------------------------------------ serving

    def _serve(self, connection: Connection) -> None:
        lane = lane_of(connection.incoming.path)
        place = self.lanes.enter(connection, lane) if lane else Place(start=True)
        if place.start:
            self._give_thread(connection)
        elif place.refused:
            self._refuse_call(connection)
        else:
            connection.enter(Phase.QUEUED, _QUEUED_SECONDS)

    def _start_next(self, connections: list[Connection]) -> None:
        """Give threads to requests that have waited, unless nobody waits for their answers."""
        starting = deque(connections)
        while starting:
            connection = starting.popleft()
            connection.enter(Phase.SERVING, 0)
            if connection.sock.client_left():
                starting.extend(self.lanes.leave(connection))
                connection.enter(Phase.LINGERING, 0)
                # Who has only ended its own side still reads; who is gone does not mind.
                send_last(connection.socket, _HALF_CLOSED, connection.incoming.path)
                self._close(connection)
            else:
                self._give_thread(connection)

    def _refuse_call(self, connection: Connection) -> None:
        self.closed["too_many_file_calls"] += 1
        told = "Too many calls of this workspace's files and ports wait; try again later."
        error = ServiceUnavailable(told, code="too-many-file-calls")
        error.wait = _QUEUE_AGAIN_SECONDS
        connection.incoming.discard()
        send_last(connection.socket, error, connection.incoming.path)
        self._linger(connection)

    def _give_thread(self, connection: Connection) -> None:
        future = self.tpool.submit(self.handle, connection)
        future.add_done_callback(
            lambda done: self.method_queue.defer(self.finish_request, connection, done)
        )

    def handle(self, connection: Connection) -> bool:
        """Answer a request that is there; tell whether another one may follow. In a thread."""
        incoming, request = connection.incoming, None
        try:
            if incoming.fault is not None:
                raise incoming.fault
            parser = http.get_parser(self.cfg, [incoming.head], connection.client)
            request = next(parser)
            request.body = incoming.opened()
            request._expected_100_continue = False  # the loop has answered that
            return bool(self.handle_request(request, connection)) and not incoming.last
        except (NoMoreData, StopIteration):
            return False
        except ConnectionError:
            self.log.debug("client_gone")
        except Exception as error:
            self.handle_error(request, connection.sock, connection.client, error)
        return False

    def handle_error(self, request: Any, client: Any, address: Any, error: Exception) -> None:
        """Answer what is no request, or made a thread fail, with a problem like any other."""
        told = refusal_of(error)
        if told.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.log.error("Error handling request", exc_info=error)
        else:
            log.info("request_refused", code=told.code, address=(address or ("",))[0])
        send_last(client, told)

    def finish_request(self, connection: Connection, done: Future[bool]) -> None:
        """Go on with a connection whose request a thread has answered."""
        connection.incoming.discard()
        self._start_next(self.lanes.leave(connection))
        if not connection.open:
            return
        connection.kept = not done.cancelled() and done.exception() is None and done.result()
        if connection.sock.source is not None:
            self._begin_stream(connection)
            return
        self.streams.release(connection)
        connection.enter(Phase.FLUSHING, 0)
        self._flush(connection)

    # ------------------------------------------------------------------ streams

    def _begin_stream(self, connection: Connection) -> None:
        """Send a stream behind its head, which is sent or waits to be."""
        connection.enter(Phase.STREAMING, 0)
        early, connection.surplus = connection.surplus, b""
        connection.incoming = Incoming(body_limit)
        ended = partial(self.method_queue.defer, self._finish_stream, connection)
        try:
            self.streams.begin(connection, ended)
        except OSError:  # the client is gone
            self._close(connection)
            return
        if early:
            self.streams.received(connection, early)
        self._flush(connection)

    def _finish_stream(self, connection: Connection) -> None:
        """Send what is left of a stream whose source has ended, and close."""
        if connection.open:
            self.streams.release(connection)
            connection.kept = False
            connection.enter(Phase.FLUSHING, 0)
            self._flush(connection)

    def _end_streams(self) -> None:
        """End the streams because we end; their clients come back and go on."""
        for connection in self.streams.connections():
            if not self.streams.end(connection):
                continue
            self.streams.say_farewell(connection, slow=False)
            if connection.sock.pending:
                self._cut(connection)
            else:
                self._finish_stream(connection)

    # ------------------------------------------------------------------ writing

    def _wake(self, connection: Connection) -> None:
        """Have the loop send what is left. Called by threads, and by the loop itself."""
        self.method_queue.defer(self._flush, connection)

    def _flush(self, connection: Connection) -> None:
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
            self._linger(connection)
        elif connection.surplus:
            self._expect(connection, connection.surplus)
        else:
            self._expect(connection, b"")
            connection.enter(Phase.IDLE, self.cfg.keepalive if self.alive else _LINGER_SECONDS)

    def _linger(self, connection: Connection) -> None:
        """Let the client read to the end: closing with something unread would cut it off."""
        try:
            connection.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(connection)
            return
        connection.enter(Phase.LINGERING, _LINGER_SECONDS)
        self._watch(connection, selectors.EVENT_READ)

    # ------------------------------------------------------------------ limits

    def _end_late(self, now: float) -> None:
        for connection in list(self.connections):
            phase = connection.phase
            if phase in (Phase.SERVING, Phase.FLUSHING, Phase.STREAMING):
                stalled = now - connection.sock.progressed_at
                if connection.sock.pending and stalled > self.write_seconds:
                    self.closed["slow_reader"] += 1
                    self.streams.say_farewell(connection, slow=True)
                    self._cut(connection)
                elif phase is Phase.STREAMING and connection.sock.broken:
                    self._close(connection)  # one that is not read from
            elif phase is Phase.QUEUED and now >= connection.deadline:
                starting = self.lanes.leave(connection)
                self._refuse_call(connection)
                self._start_next(starting)
            elif now >= connection.deadline:
                if phase is Phase.READING:
                    self.closed["slow_writer"] += 1
                    if connection.incoming.begun:
                        late = RequestTimeout("The request did not arrive in time.")
                        send_last(connection.socket, late)
                self._close(connection)

    def _free_threads(self, now: float) -> None:
        """Have at most half of the threads wait for readers."""
        waiting = [each for each in self.connections if each.sock.waiting]
        waiting.sort(key=lambda each: each.sock.progressed_at)
        for connection in waiting[: len(waiting) - max(1, self.cfg.threads // 2)]:
            if now - connection.sock.progressed_at > _STALLED_SECONDS:
                self.closed["slow_reader"] += 1
                self._cut(connection)

    def _free_memory(self) -> None:
        held = sum(connection.held for connection in self.connections)
        others = [each for each in self.connections if each.phase is not Phase.SERVING]
        others.sort(key=lambda each: each.held)
        while held > _HELD_BYTES and others:
            largest = others.pop()
            held -= largest.held
            self.closed["too_large"] += 1
            self._cut(largest)

    def _report(self, now: float) -> None:
        if self.closed and now - self.reported_at >= _REPORT_SECONDS:
            log.warning("connections_closed_by_limits", reasons=dict(self.closed))
            self.closed.clear()
            self.reported_at = now

    # ------------------------------------------------------------------ ending

    def _cut(self, connection: Connection) -> None:
        """Give a connection up, whatever it is about; a thread that answers it ends by itself."""
        connection.sock.give_up()
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.open:
            connection.open = False
            if connection.phase is Phase.QUEUED:
                self._start_next(self.lanes.leave(connection))
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


def _share(limit: int) -> int:
    """Return what one of the processes has of a limit of all of them."""
    return max(1, -(-limit // settings.SVC_API_WORKERS))


def _spool(path: str) -> SpooledBody | None:
    """Return what keeps a body that is no matter for memory."""
    return SpooledBody(settings.SVC_UPLOAD_DIR) if is_spooled(path) else None
