"""A client whom the kernel gave up, because it took nothing, before the loop did."""

from __future__ import annotations

import select
import selectors
import socket

from gunicorn.config import Config

from controlplane.serving.client_loop import ClientLoop
from controlplane.serving.connections import Connection, Phase
from tests.support.waiting import LONG_WAIT


class Loop(ClientLoop):
    """The clients' side of a worker that answers nothing by itself."""

    def serve(self, connection: Connection) -> None:
        raise AssertionError("no client has sent a request")

    def refuse_waiting(self, connection: Connection) -> None:
        raise AssertionError("no request waits")

    def leave_queue(self, connection: Connection) -> None:
        raise AssertionError("no request waits")


def test_a_reader_whom_the_kernel_gave_up_first_is_counted_as_slow_as_well() -> None:
    loop = Loop(0, 0, [], None, 30, Config(), None)
    loop.poller = selectors.DefaultSelector()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with socket.create_connection(listener.getsockname()):
            loop.accept(listener)
            (connection,) = loop.connections
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 100)
            connection.enter(Phase.STREAMING, 0)
            connection.sock.wake = lambda: None
            while len(connection.sock.pending) < 1024 * 1024:
                connection.sock.offer(bytes(1024 * 1024))
            given_up = select.poll()
            given_up.register(connection.socket, 0)  # an error, and nothing else
            assert given_up.poll(LONG_WAIT * 1000)
            loop.flush(connection)
            assert connection.sock.broken
            loop.close_connection(connection)
    loop.poller.close()
    loop.tmp.close()
    assert loop.limits.closed == {"slow_reader": 1}
