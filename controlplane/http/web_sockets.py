"""WebSockets (RFC 6455): the handshake, and streams whose bytes are frames both ways.

The handshake is an ordinary request, with all that is checked of one. Behind the answer 101 the
connection belongs to the worker's loop, as that of every stream does, and ``wsproto``, which knows
no sockets, makes and reads the frames.

What ends a connection has a close code: 1000 at the end, 1001 when the service ends, 1002, 1007 and
1009 for what is no sound frame or too long, and 4000 more than the status of a problem, with the
problem's ``code`` as the reason.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
from abc import abstractmethod
from typing import Any, Final

from rest_framework.request import Request
from wsproto import ConnectionType
from wsproto.connection import Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, generate_accept_token

from controlplane.errors import BadRequest, ControlPlaneError, UpgradeRequired
from controlplane.http.stream_answers import Duplex, Piece, StreamAnswer, require_stream_room

VERSION: Final = "13"
HELD_BYTES: Final = 256 * 1024
"""How much of what a client sends is kept until it is taken; nothing is read beyond it."""
MAX_TEXT_BYTES: Final = 4_096
"""How long a text message may be. Binary ones are taken as they come, however long they are."""
END_SECONDS: Final = 5.0
"""How long a program has, once its client has said goodbye, to take what came before that."""
PROBLEM_CLOSE: Final = 4_000
"""A problem closes with this and its status: 4409 for a conflict."""
_KEY_BYTES: Final = 16


def is_upgrade(headers: Any) -> bool:
    """Tell whether a request with these headers asks for a WebSocket."""
    return "websocket" in _tokens(headers.get("upgrade", ""))


def web_socket_answer(request: Request, source: WebSocketSource) -> StreamAnswer:
    """Return the answer behind which ``source`` speaks with the client.

    Raises ``UpgradeRequired`` unless the request asks for a WebSocket as RFC 6455 has it,
    ``BadRequest`` (``bad-handshake``), and ``ServiceUnavailable`` (``too-many-streams``).
    """
    accept = _accept(request)
    require_stream_room(request)
    answer = StreamAnswer(source, content_type="application/octet-stream")
    answer.status_code = 101
    del answer["Content-Type"]
    answer["Upgrade"] = "websocket"
    answer["Connection"] = "upgrade"
    answer["Sec-WebSocket-Accept"] = accept
    return answer


def _accept(request: Request) -> str:
    """Return what proves to the client that its handshake was understood."""
    headers = request.headers
    spoken = request.method == "GET" and request.META.get("SERVER_PROTOCOL") == "HTTP/1.1"
    asked = is_upgrade(headers) and "upgrade" in _tokens(headers.get("connection", ""))
    if not (spoken and asked) or headers.get("sec-websocket-version") != VERSION:
        error = UpgradeRequired("This endpoint needs a WebSocket handshake, version 13.")
        error.headers = {"Upgrade": "websocket", "Sec-WebSocket-Version": VERSION}
        raise error
    key = headers.get("sec-websocket-key", "")
    try:
        sound = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (ValueError, binascii.Error):
        sound = False
    if not sound:
        raise BadRequest("Sec-WebSocket-Key is not 16 bytes in base64.", code="bad-handshake")
    return generate_accept_token(key.encode()).decode()


def _tokens(value: str) -> set[str]:
    return {each.strip().lower() for each in value.split(",")}


class WebSocketSource(Duplex):
    """A stream whose pieces are whole frames, and whose client sends frames.

    One thread at a time calls the rest; :meth:`receive` and :meth:`farewell` may come in between.
    """

    def __init__(self) -> None:
        self._protocol = Connection(ConnectionType.SERVER)
        self._lock = threading.Lock()
        self._received = bytearray()
        self._text: list[str] = []
        self._text_bytes = 0
        self._pong: Pong | None = None
        self._end: list[Event] | None = None
        """What is said at the end, once everything before it is taken."""
        self._end_at = float("inf")
        """When nothing is waited for any more before the end is said."""
        self._left = False
        """Whether something is left that could not be taken yet."""
        self._sizes: list[int] = []
        """How long the frames are that were given last."""

    # ------------------------------------------------------------------ what others are to say

    @abstractmethod
    def said(self, text: str) -> None:
        """Note a text message; raise ``ControlPlaneError`` for one that cannot be understood."""

    @abstractmethod
    def given(self, data: bytes) -> None:
        """Note the next part of the binary messages, which are one stream of bytes."""

    @abstractmethod
    def hand_over(self) -> float:
        """Do what was noted; return after how many seconds to go on with what is left of it.

        0.0: nothing is left. Raises ``ControlPlaneError``, which ends the connection, and Django's
        database errors, after which it is called again.
        """

    @property
    @abstractmethod
    def noted_bytes(self) -> int:
        """How much is noted and not done."""

    @abstractmethod
    def next_messages(self, room: int, since: float) -> tuple[list[Event], bool]:
        """Return what follows, about ``room`` bytes, and whether there is more already.

        A ``CloseConnection`` at its end ends the connection. Otherwise as :meth:`read`.
        """

    @abstractmethod
    def explained(self, error: ControlPlaneError) -> TextMessage:
        """Return the message that tells of a problem."""

    # ------------------------------------------------------------------ from the client

    @property
    def has_room(self) -> bool:
        """Whether less waits than may."""
        return self._kept < HELD_BYTES

    @property
    def _kept(self) -> int:
        return len(self._received) + self._text_bytes + self.noted_bytes

    def receive(self, data: bytes) -> None:
        """Keep bytes until a thread has time for them; those behind an end are nothing."""
        if self._end is None:
            with self._lock:
                self._received += data
            self.held = self._kept

    def take(self) -> float:
        """Read the frames that came, and do what they say."""
        with self._lock:
            data, self._received = bytes(self._received), bytearray()
        if data and self._end is None:
            self._protocol.receive_data(data)
            for event in self._protocol.events():
                self._hear(event)
                if self._end is not None:
                    break
        try:
            wait = self.hand_over()
        except ControlPlaneError as error:
            self._end, wait = self._problem(error), 0.0
        if self._end is not None:
            self._end_at = min(self._end_at, time.monotonic() + END_SECONDS)
            wait = 0.0 if time.monotonic() >= self._end_at else wait
        self._left = wait > 0
        self.held = self._kept
        return wait

    def _hear(self, event: Event) -> None:
        if isinstance(event, BytesMessage):
            self.given(bytes(event.data))
        elif isinstance(event, TextMessage):
            self._hear_text(event)
        elif isinstance(event, Ping):
            self._pong = event.response()  # to the last one: RFC 6455, section 5.5.3
        elif isinstance(event, CloseConnection):
            # The client's own, or for what is no frame.
            closing = self._protocol.state is ConnectionState.REMOTE_CLOSING
            self._end = [event.response() if closing else event]

    def _hear_text(self, event: TextMessage) -> None:
        if event.data:
            self._text.append(event.data)
        self._text_bytes += len(event.data.encode())
        if self._text_bytes > MAX_TEXT_BYTES:
            told = f"A text message may have at most {MAX_TEXT_BYTES} bytes."
            self._end = [CloseConnection(CloseReason.MESSAGE_TOO_BIG, told)]
        elif event.message_finished:
            text = "".join(self._text)
            self._text, self._text_bytes = [], 0
            try:
                self.said(text)
            except ControlPlaneError as error:
                self._end = self._problem(error)

    # ------------------------------------------------------------------ to the client

    def read(self, room: int, since: float) -> Piece:
        """Return frames: answers to the client first, then what follows."""
        events: list[Event] = []
        if self._pong is not None:
            events, self._pong = [self._pong], None
        more = False
        if self._end is None:
            messages, more = self.next_messages(room, since)
            events += messages
        elif not self._left:
            events += self._end
        data = self._framed(events)
        ended = any(isinstance(each, CloseConnection) for each in events)
        return Piece(data, more=more, ended=ended)

    def heartbeat(self) -> bytes:
        """Return a ping."""
        return self._framed([Ping()])

    def farewell(self, error: ControlPlaneError | None) -> bytes:
        """Return a problem and its close code, or that the service goes away."""
        if error is not None:
            return self._framed(self._problem(error))
        going_away = "The service is restarting; reconnect to continue."
        return self._framed([CloseConnection(CloseReason.GOING_AWAY, going_away)])

    def rest_of_begun(self, pending: bytes | bytearray) -> int | None:
        """Return where the frame ends that was begun: the last ones given are pending."""
        behind = 0
        for size in reversed(self._sizes):
            if behind + size > len(pending):
                return len(pending) - behind
            behind += size
        return 0 if behind == len(pending) else None

    def _problem(self, error: ControlPlaneError) -> list[Event]:
        return [self.explained(error), CloseConnection(PROBLEM_CLOSE + error.status, error.code)]

    def _framed(self, events: list[Event]) -> bytes:
        frames = []
        for event in events:
            try:
                frames.append(self._protocol.send(event))
            except LocalProtocolError:
                continue  # behind a goodbye, nothing but the answer to it is said
        if frames:
            self._sizes = [len(each) for each in frames]
        return b"".join(frames)
