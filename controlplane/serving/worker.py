"""The gunicorn worker of the API: threads never wait for a client.

One loop reads and writes for all clients (``client_loop.py``), and a thread gets a request when all
of it is there. Requests about a workspace's files may wait for a thread (``lanes.py``); a few other
threads read what streams send next (``streaming.py``).
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from concurrent.futures import Future
from functools import partial
from http import HTTPStatus
from typing import Any

import structlog
from gunicorn import http
from gunicorn.http.errors import NoMoreData

from controlplane.errors import BadRequest, ServiceUnavailable
from controlplane.http.body_limits import body_limit
from controlplane.serving.client_loop import LINGER_SECONDS, ClientLoop
from controlplane.serving.connections import Connection, Phase
from controlplane.serving.framing import Incoming
from controlplane.serving.lanes import Lanes, Place, lane_of
from controlplane.serving.short_answers import refusal_of, send_last
from controlplane.serving.streaming import Application, taking_streams

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 0.25
_QUEUED_SECONDS = 60.0
"""How long a call of a workspace's files may wait for a thread."""
_QUEUE_AGAIN_SECONDS = 5
_HALF_CLOSED = BadRequest(
    "Nothing was done: the client ended its side of the connection while the call waited for its "
    "turn. Keep it open until the answer arrives.",
    code="connection-half-closed",
)


class RequestWorker(ClientLoop):
    """Gives threads complete requests, and takes their answers to clients however slow."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.looked_at = 0.0
        self.lanes: Lanes[Connection] = Lanes(self.cfg.threads)

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
                connection.enter(Phase.IDLE, LINGER_SECONDS)
        while self.connections and time.monotonic() < end:
            self._end_streams()
            self._turn()
        self.streams.stop()
        self.lanes.stop()
        self.streams.join(max(0.0, end - time.monotonic()))
        for connection in list(self.connections):
            self.close_connection(connection)
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
            self.end_late(now)
            self.streams.look(now)
            self.limits.report(now)

    # ------------------------------------------------------------------ serving

    def serve(self, connection: Connection) -> None:
        """Give a thread to a request, or have it wait for one."""
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
                self.close_connection(connection)
            else:
                self._give_thread(connection)

    def _refuse_call(self, connection: Connection) -> None:
        self.limits.closed["too_many_file_calls"] += 1
        told = "Too many file and port calls of this workspace are waiting; try again later."
        error = ServiceUnavailable(told, code="too-many-file-calls")
        error.wait = _QUEUE_AGAIN_SECONDS
        connection.incoming.discard()
        send_last(connection.socket, error, connection.incoming.path)
        self.linger(connection)

    def refuse_waiting(self, connection: Connection) -> None:
        """Refuse a request that has waited for a thread for too long."""
        starting = self.lanes.leave(connection)
        self._refuse_call(connection)
        self._start_next(starting)

    def leave_queue(self, connection: Connection) -> None:
        """Give the place of a request that waits to the next one: its connection closes."""
        self._start_next(self.lanes.leave(connection))

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
            if incoming.last:
                request.force_close()
            return bool(self.handle_request(request, connection))
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
            log.error("request_failed", exc_info=error)
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
        self.flush(connection)

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
            self.close_connection(connection)
            return
        if early:
            self.streams.received(connection, early)
        self.flush(connection)

    def _finish_stream(self, connection: Connection) -> None:
        """Send what is left of a stream whose source has ended, and close."""
        if connection.open:
            self.streams.release(connection)
            connection.kept = False
            connection.enter(Phase.FLUSHING, 0)
            self.flush(connection)

    def _end_streams(self) -> None:
        """End the streams because we end; their clients come back and go on."""
        for connection in self.streams.connections():
            if not self.streams.end(connection):
                continue
            self.streams.say_farewell(connection, slow=False)
            if connection.sock.pending:
                self.cut(connection)
            else:
                self._finish_stream(connection)
