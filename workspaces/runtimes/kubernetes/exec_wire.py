"""One exec's WebSocket, without a socket: what is to be sent, and what was received, taken apart.

The API server passes a process's streams on as messages whose first byte is the number of a
channel: 0 input, 1 output, 2 errors, 3 how it ended, as the JSON of a ``Status``. Two versions are
offered, ``v5`` and ``v4``; the input has frames of our own in both (``relay.py``), because ``v4``
cannot say that it ends, so that both are used in the same way.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote, urlencode

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
INPUT, OUTPUT, ERRORS, STATUS = range(4)
KEEP_ALIVE_SECONDS = 20.0
"""How often the other side is told that we are there; it waits for four times as long."""
SIGN_OF_LIFE = b"\xff\xff\xff\xff"
END_OF_INPUT = b"\0\0\0\0"
INPUT_BYTES = 256 * 1024
_STATUS_BYTES = 64 * 1024
_REFUSAL_BYTES = 64 * 1024


class ExecRefused(Exception):
    """The API server has not begun the exec."""

    def __init__(self, status: int, content: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.content = content


def exec_path(namespace: str, pod: str, container: str, command: Sequence[str]) -> str:
    """Return the path and query of an exec."""
    query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    query += [("command", each) for each in command]
    return f"/api/v1/namespaces/{namespace}/pods/{quote(pod)}/exec?{urlencode(query)}"


class ExecWire:
    """What one exec says; whoever has the connection sends and receives.

    One thread may send while another one receives.
    """

    def __init__(self) -> None:
        self._connection = WSConnection(ConnectionType.CLIENT)
        # The library keeps the state of one frame: of two at once one goes on with the other.
        self._framing = threading.Lock()
        self._channel = -1
        self._status = bytearray()
        self._refusal: RejectConnection | None = None
        self._refusal_content = bytearray()
        self.protocol = ""
        self.opened = False
        self.closed = False

    def request(self, host: str, path: str, headers: Mapping[str, str]) -> bytes:
        """Return the first bytes to send."""
        return self._sent(
            Request(
                host=host,
                target=path,
                subprotocols=list(PROTOCOLS),
                extra_headers=[(name.encode(), value.encode()) for name, value in headers.items()],
            )
        )

    def receive(self, data: bytes | None) -> tuple[list[tuple[int, bytes]], bytes]:
        """Take what came, None at its end; return (channel, payload) of each, and what to send.

        Raises ``ExecRefused``; what makes no sense closes the wire.
        """
        found: list[tuple[int, bytes]] = []
        answer = b""
        if self.closed:
            return found, answer
        try:
            self._connection.receive_data(data)
            for event in self._connection.events():
                if isinstance(event, AcceptConnection):
                    self.opened, self.protocol = True, event.subprotocol or ""
                elif isinstance(event, BytesMessage | TextMessage):
                    found.extend(self._message(event))
                elif isinstance(event, Ping):
                    answer += self._sent(event.response())
                elif isinstance(event, CloseConnection):
                    self.closed = True
                else:
                    self._note_refusal(event)
        except ProtocolError:
            self.closed = True
        if data is None:
            self.closed = True
        if self._refusal is not None and self.closed:
            raise ExecRefused(self._refusal.status_code, bytes(self._refusal_content))
        return found, answer

    def input(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Return what gives the process these bytes, piece by piece."""
        for at in range(0, len(data), INPUT_BYTES):
            piece = bytes(data[at : at + INPUT_BYTES])
            yield self.frame(struct.pack("!I", len(piece)) + piece)

    def frame(self, content: bytes) -> bytes:
        """Return what sends ``content`` on the channel of the input as it is."""
        if self.closed:
            return b""
        return self._sent(BytesMessage(bytes((INPUT,)) + content))

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while that was not said."""
        try:
            told = json.loads(self._status)
            if told["status"] == "Success":
                return 0
            causes = told["details"]["causes"]
            return next(int(each["message"]) for each in causes if each["reason"] == "ExitCode")
        except (ValueError, KeyError, TypeError, StopIteration):
            return None

    @property
    def failure(self) -> str:
        """What the API server says went wrong with the exec itself; empty when nothing did."""
        try:
            told = json.loads(self._status)
            failed = told["status"] != "Success" and self.exit_code is None
            return str(told.get("message") or "it failed") if failed else ""
        except (ValueError, KeyError, TypeError, AttributeError):
            return ""

    def _sent(self, event: Event) -> bytes:
        with self._framing:
            return self._connection.send(event)

    def _message(self, event: BytesMessage | TextMessage) -> Iterator[tuple[int, bytes]]:
        data = event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
        if self._channel < 0 and data:
            self._channel, data = data[0], data[1:]
        if self._channel == STATUS:
            self._status += data[: _STATUS_BYTES - len(self._status)]
        elif data:
            yield self._channel, data
        if event.message_finished:
            self._channel = -1

    def _note_refusal(self, event: object) -> None:
        if isinstance(event, RejectConnection):
            self._refusal = event
            self.closed = self.closed or not event.has_body
        elif isinstance(event, RejectData):
            self._refusal_content += event.data[: _REFUSAL_BYTES - len(self._refusal_content)]
            self.closed = self.closed or event.body_finished
