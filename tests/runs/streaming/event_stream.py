"""Reading server-sent events as the standard says, and following a stream over real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.waiting import LONG_WAIT

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Received:
    """One event, with the last ``id`` that was told by then."""

    event: str
    data: str
    id: str

    @property
    def json(self) -> Any:
        """The data, which is JSON in all of ours."""
        return json.loads(self.data)


@dataclass
class Parser:
    """Takes bytes apart as they come; an event that is not complete is none."""

    last_id: str = ""
    retry: int | None = None
    comments: int = 0
    _rest: bytes = b""
    _event: str = ""
    _data: list[str] = field(default_factory=list)
    _id: str | None = None

    def feed(self, data: bytes) -> list[Received]:
        """Return the events that are complete with ``data``."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            if line:
                self._field(line.decode())
                continue
            if self._id is not None:
                self.last_id = self._id
            if self._data:
                told = "\n".join(self._data)
                found.append(Received(self._event or "message", told, self.last_id))
            self._event, self._data = "", []
        return found

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not name:
            self.comments += 1
        elif name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self._id = value
        elif name == "retry":
            self.retry = int(value)


def received(content: bytes) -> list[Received]:
    """Return the events of a whole stream."""
    return Parser().feed(content)


class Follower:
    """A client of one stream over a socket of its own."""

    def __init__(
        self,
        port: int,
        path: str,
        *,
        last_id: str = "",
        address: str = HOST,
        headers: str = "",
        timeout: float = LONG_WAIT,
    ) -> None:
        self.parser = Parser(last_id=last_id)
        self.socket = socket.create_connection(
            (HOST, port), timeout=timeout, source_address=(address, 0)
        )
        headers += f"Last-Event-ID: {last_id}\r\n" if last_id else ""
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
        self.head = b""
        self._first = b""

    def read_head(self) -> int:
        """Read the head of the answer; return its status."""
        while b"\r\n\r\n" not in self.head:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed before it answered")
            self.head += data
        self.head, _, self._first = self.head.partition(b"\r\n\r\n")
        return int(self.head.split(b" ")[1])

    def receive(self, size: int = 65536) -> list[Received] | None:
        """Return the events that are complete with what comes next; None at the end."""
        if not self.head:
            self.read_head()
        data, self._first = self._first, b""
        data = data or self.socket.recv(size)
        return self.parser.feed(data) if data else None

    def events(self) -> Iterator[Received]:
        """Yield events until the stream ends."""
        while (found := self.receive()) is not None:
            yield from found

    def close(self) -> None:
        """Close without a word."""
        self.socket.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
