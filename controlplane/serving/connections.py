"""One client's connection: what arrives on it, what it still has to be sent, and by when."""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Callable
from enum import Enum

from controlplane.errors import ControlPlaneError
from controlplane.http.stream_answers import Source
from controlplane.security.addresses import network_of
from controlplane.serving.framing import Incoming

HELD_BYTES = 512 * 1024
"""How much of an answer waits for its reader before the thread that makes it waits as well."""
PROGRESS_BYTES = 64 * 1024
"""What a reader has to take within the time limit, or all that is left."""
_SEND_BYTES = 256 * 1024
_LAST_BYTES = 192 * 1024


class Phase(Enum):
    """What a connection is about, in the order in which connections make room for others."""

    IDLE = 0
    READING = 1
    LINGERING = 2
    FLUSHING = 3
    QUEUED = 4
    SERVING = 5
    STREAMING = 6


class Outgoing:
    """The answer's way to the client, as gunicorn writes to a socket.

    A thread puts in; what the client does not take at once is sent by the worker's loop. A thread
    waits only while more than ``HELD_BYTES`` are left, and gets a ``BrokenPipeError`` once the
    connection is given up.
    """

    def __init__(self, sock: socket.socket, wake: Callable[[], None]) -> None:
        self.pending = bytearray()
        self.waiting = False
        self.progressed_at = time.monotonic()
        self._taken = 0
        self._broken = False
        self.timed_out = False
        """Whether the kernel has given up a client for whom something was left to be sent."""
        self._sock = sock
        self.wake = wake
        """Has the loop look at the connection."""
        self._room = threading.Condition()
        self.admit_stream: Callable[[str], bool] = lambda _: False
        """Tells the view of a stream whether the one it is for may have one more."""
        self.source: Source | None = None
        """What goes on behind the head that a thread has sent."""

    def offer(self, data: bytes) -> None:
        """Send ``data``, or keep it in ``pending`` for the loop. Never waits.

        Raises ``BrokenPipeError`` once the connection is given up.
        """
        with self._room:
            if self._broken:
                raise BrokenPipeError("the client has disconnected or is too slow")
            if not self.pending:
                self.progressed_at, self._taken = time.monotonic(), 0
            self.pending += data
            self._send()
            if self.pending:
                self.wake()

    @property
    def broken(self) -> bool:
        """Whether the client is gone, or given up."""
        return self._broken

    def last_words(self, source: Source, error: ControlPlaneError | None) -> None:
        """Send how ``source`` ends, behind the end of what was begun, if the kernel takes it."""
        with self._room:
            if self._broken:
                return
            if self.pending:
                end = source.rest_of_begun(self.pending)
                if end is None:
                    return
                del self.pending[end:]
            self.pending += source.farewell(error)
            self._send()
            if self.pending and not self._broken:
                # Nothing follows, so the kernel may keep a little more than it was asked to.
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LAST_BYTES)
                self._send()

    def sendall(self, data: bytes) -> None:
        """Send ``data``, or keep it for the loop to send."""
        with self._room:
            if self._broken:
                raise BrokenPipeError("the client has disconnected or is too slow")
            if not self.pending:
                self.progressed_at, self._taken = time.monotonic(), 0
            self.pending += data
            self._send()
            if not self.pending:
                return
            self.wake()
            self.waiting = True
            self._room.wait_for(lambda: self._broken or len(self.pending) <= HELD_BYTES)
            self.waiting = False
            if self._broken:
                raise BrokenPipeError("the client has disconnected or is too slow")

    def send(self, data: bytes) -> int:
        """Send all of ``data``."""
        self.sendall(data)
        return len(data)

    def gettimeout(self) -> float:
        """Tell gunicorn that nothing has to be changed for it to write."""
        return 0.0

    def shutdown(self, how: int) -> None:
        """Do nothing: the loop closes."""
        raise OSError("the loop closes")

    def close(self) -> None:
        """Do nothing: the loop closes."""

    def flush(self) -> None:
        """Send what the client takes now. Called by the loop."""
        with self._room:
            self._send()

    def client_left(self) -> bool:
        """Tell whether the client is gone, or sends nothing any more. In any thread."""
        with self._room:
            if self._broken:
                return True
            poll = select.poll()
            try:
                poll.register(self._sock, select.POLLRDHUP)
                return bool(poll.poll(0))
            except (OSError, ValueError):
                return True

    def give_up(self) -> None:
        """Drop what is left, and free the thread that waits."""
        with self._room:
            self._broken = True
            self.pending.clear()
            self._room.notify_all()

    def _send(self) -> None:
        try:
            while self.pending and not self._broken:
                with memoryview(self.pending) as view, view[:_SEND_BYTES] as piece:
                    count = self._sock.send(piece)
                del self.pending[:count]
                self._taken += count
        except BlockingIOError:
            pass
        except OSError as error:
            self.timed_out = error.errno == errno.ETIMEDOUT
            self._broken = True
            self.pending.clear()
        if self._taken >= PROGRESS_BYTES or not self.pending:
            self.progressed_at, self._taken = time.monotonic(), 0
        if self._broken or len(self.pending) <= HELD_BYTES:
            self._room.notify_all()


class Connection:
    """One accepted connection. Only the worker's loop changes it; a thread reads and answers."""

    def __init__(
        self,
        sock: socket.socket,
        client: tuple[str, int],
        server: tuple[str, int],
        wake: Callable[[Connection], None],
    ) -> None:
        self.socket = sock
        self.client = client
        self.server = server
        self.address = network_of(client[0])
        self.sock = Outgoing(sock, lambda: wake(self))  # the name by which gunicorn writes to it
        self.phase = Phase.READING
        self.since = time.monotonic()
        self.deadline = 0.0
        self.incoming: Incoming
        self.surplus = b""
        self.kept = False
        self.counted = 0
        """How much of a body had come when it was last given time for more."""
        self.watched = 0
        self.open = True

    def enter(self, phase: Phase, seconds: float) -> None:
        """Begin ``phase``, which ends after so many seconds."""
        self.phase, self.since = phase, time.monotonic()
        self.deadline = self.since + seconds

    @property
    def held(self) -> int:
        """How many bytes of memory are kept for it."""
        source = self.sock.source
        kept = 0 if source is None else source.held
        return self.incoming.held + len(self.sock.pending) + kept
