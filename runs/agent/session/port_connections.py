"""`agent connect`: connections to what listens in this workspace, many of them over one stream.

The frames are those of a session, and every channel is a connection to a port. Each one is an event
of the workspace's own record, which PID 1 writes; what it has no room for is not connected.
"""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any, Dict, List, Set

from ..execution.runspec import parse_object
from ..files.access import AccessLog
from ..files.files_wire import Refusal as NotRecorded
from ..observe.network import listening_sockets
from ..record.frames import KIND_NAMES, Kind
from ..strict import ConfigError
from .channel import ChannelError, FrameReader, FrameWriter, FromClient, ToClient
from .channel_set import Link
from .forwards import NOT_RECORDED, Address, Forward
from .gateway_connection import FrameConnection
from .session_requests import BAD_REQUEST, CONNECT_FAILED, Refusal

EXIT_REFUSED = 1
NOTHING_LISTENS = "nothing-listens"
NO_ROOM = "access-not-recorded"

_MOST_NAMED = 12
_MOST_BYTES = 2**63 - 1
_REASON_CHARACTERS = 32
# Where the engine answers for the names of its networks; no program of the workspace does.
_RESOLVER = "127.0.0.11"
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - read, not bound
_LOOPBACK = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]


def serve(state_directory: str) -> int:
    """Serve the client on stdin and stdout until it goes; returns the exit code of the process."""
    reader, writer = FrameReader(0), FrameWriter(1)
    try:
        _take_spec(reader)
        record = _PortRecord(state_directory)
    except (ChannelError, NotRecorded) as error:
        writer.send(ToClient.ERROR, 0, json.dumps({"message": str(error)}).encode())
        writer.flush()
        return EXIT_REFUSED
    connection = PortConnections(record, reader, writer)
    connection.greet({"direct": True})
    connection.begin()
    while not connection.is_over():
        _turn(connection)
    return 0


def _turn(connection: PortConnections) -> None:
    """Wait until something happens, and do what is to be done then."""
    watches = connection.watches(True)
    poll = select.poll()
    for fd, events, _ in watches:
        poll.register(fd, events)
    until = connection.deadline()
    left = None if until is None else max(0.0, until - time.monotonic()) * 1000 + 1
    ready = dict(poll.poll(left))
    for fd, _, act in watches:
        if fd in ready:
            act(ready[fd])
    connection.tick()


def _take_spec(reader: FrameReader) -> None:
    while True:
        frame = reader.take()
        if frame is not None:
            if frame.type != FromClient.SPEC or frame.channel != 0:
                raise ChannelError("the first frame must be the spec")
            return
        if reader.ended:
            raise ChannelError("the stream ended before the spec")
        reader.read()


class _PortRecord:
    """The workspace's record, as forwards write to it; PID 1 masks what it is told."""

    def __init__(self, state_directory: str) -> None:
        self._state_directory = state_directory
        self._log = AccessLog(state_directory, {})

    def mask_text(self, text: str) -> str:
        return text

    def event(self, kind: int, meta: Dict[str, Any], *, method: int) -> bool:
        told = {"event": KIND_NAMES[kind], **meta}
        if self._log.report(told):
            return True
        if not self._log.is_closed:
            return False
        # It was too slow once. The end of what has begun is told again; the rest is not done.
        try:
            self._log = AccessLog(self._state_directory, {})
        except NotRecorded:
            return False
        return kind == Kind.FORWARD_CLOSED and self._log.report(told)


class PortConnections(FrameConnection):
    """The channels of one client."""

    def __init__(self, record: _PortRecord, reader: FrameReader, writer: FrameWriter) -> None:
        super().__init__(reader, writer)
        self._record = record

    def open(self, number: int, payload: bytes) -> None:
        try:
            top = parse_object(payload, "the request")
            port = top.count("port", 65535)
            by = top.text("by")
            direct = top.has("direct") and top.flag("direct")
            top.finish()
        except ConfigError as error:
            raise Refusal(BAD_REQUEST, str(error)) from None
        kind = DirectForward if direct else PortForward
        self._keep(kind(self, number, self._record, port, by))


class PortForward(Forward):
    """A connection to a port on which something in the workspace listens, and to nothing else."""

    def __init__(self, link: Link, number: int, record: _PortRecord, port: int, by: str) -> None:
        self._by = by
        super().__init__(link, number, record, "localhost", port)

    def _known_addresses(self) -> List[Address]:
        found: List[Address] = []
        for address in _listening().get(self.port, ()):
            if address in _EVERYWHERE:
                return list(_LOOPBACK)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            found.append((family, address))
        return found or list(_LOOPBACK)

    def _refusal(self, why: str) -> Dict[str, Any]:
        if why == NOT_RECORDED:
            return {"code": NO_ROOM, "message": f"The connection could not be made: {why}."}
        listening = _listening()
        if self.port in listening:
            message = f"The server on port {self.port} does not accept the connection: {why}."
            return {"code": CONNECT_FAILED, "message": message}
        others = ", ".join(str(port) for port in sorted(listening)[:_MOST_NAMED])
        rest = f"something listens on {others}" if others else "nothing listens on any port"
        message = f"Nothing listens on port {self.port} in the workspace; {rest}."
        return {"code": NOTHING_LISTENS, "message": message}

    def _place(self) -> Dict[str, Any]:
        return {"host": self.host, "port": self.port, "by": self._by, "via": "preview"}


class DirectForward(PortForward):
    """A connection that the client makes itself inside this network, and that is recorded here.

    The client is told where something listens. What it sends is how much has gone over the
    connection so far, `{"sentBytes": n, "receivedBytes": n, "reason": text}`, now and then and
    before it closes: when it is gone without that, the record has what it told last.
    """

    def _connect(self, addresses: List[Address]) -> None:
        self._reason = ""
        if self.port not in _listening():
            self._refuse("nothing listens")
            return
        if not self._record(Kind.FORWARD_OPENED, {}):
            self._refuse(NOT_RECORDED)
            return
        self._connected = True
        self.deadline = None
        self.tell(ToClient.OPENED, {"addresses": [address for _, address in addresses]})

    def give(self, data: bytes) -> None:
        self.consumed(len(data))
        try:
            told = parse_object(data, "the report")
            sent = told.count("sentBytes", _MOST_BYTES)
            received = told.count("receivedBytes", _MOST_BYTES)
            reason = told.text("reason")
            told.finish()
        except ConfigError as error:
            raise ChannelError(f"a report that makes no sense: {error}") from None
        self._sent, self._received, self._reason = sent, received, reason[:_REASON_CHARACTERS]

    def end_input(self) -> None:
        pass

    def end(self, reason: str) -> None:
        super().end(self._reason or reason if reason == "client" else reason)


def _listening() -> Dict[int, Set[str]]:
    """The addresses of this workspace on which something listens, by port."""
    found: Dict[int, Set[str]] = {}
    for port, address, _ in listening_sockets():
        if address != _RESOLVER:
            found.setdefault(port, set()).add(address)
    return found
