"""A client that is attached to a run, over ``websockets``, which is of another make than ours."""

from __future__ import annotations

import json
import socket
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.support.waiting import LONG_WAIT

SECONDS = LONG_WAIT


class Attached:
    """One attach at a port or an address, and what has come of it. Must be closed."""

    def __init__(self, at: int | str, run: object, query: str = "", **options: Any) -> None:
        base = at if isinstance(at, str) else f"ws://127.0.0.1:{at}"
        waits = dict.fromkeys(("open_timeout", "ping_timeout", "close_timeout"), SECONDS)
        given = {"proxy": None, "max_size": None, **waits, **options}
        self._open = ExitStack()
        self.socket: ClientConnection = self._open.enter_context(
            connect(f"{base}/v1/runs/{run}/attach{query}", **given)
        )
        self.messages: list[dict[str, Any]] = []
        self.output: dict[str, bytearray] = defaultdict(bytearray)
        self.holes: list[tuple[str, int, int]] = []
        """Stream, and where what is missing begins and ends, counted from the first byte here."""
        self._stream = ""
        self._first: dict[str, int] = {}

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye."""
        self._open.close()

    def break_off(self) -> None:
        """Cut the connection without a word."""
        self.socket.socket.shutdown(socket.SHUT_RDWR)

    def receive(self) -> bool:
        """Take the next message; False when the connection is closed."""
        try:
            told = self.socket.recv(SECONDS)
        except ConnectionClosed:
            return False
        if isinstance(told, bytes):
            self.output[self._stream] += told
            return True
        message = json.loads(told)
        self.messages.append(message)
        if message["type"] == "output":
            self._stream = message["stream"]
            first = self._first.setdefault(self._stream, message["offset"])
            expected = first + len(self.output[self._stream])
            if message["offset"] != expected:
                self.holes.append((self._stream, expected, message["offset"]))
                self._first[self._stream] += message["offset"] - expected
        return True

    def until(self, done: Callable[[Attached], bool]) -> None:
        """Take messages until ``done``, which has to come true before the connection closes."""
        while not done(self):
            assert self.receive(), (self.messages, self.closed)

    def until_output(self, expected: bytes, stream: str = "pty") -> None:
        """Take messages until the output of a stream is as long as ``expected``, and the same."""
        self.until(lambda client: len(client.output[stream]) >= len(expected))
        assert bytes(self.output[stream]) == expected

    def rest(self) -> None:
        """Take everything up to the end of the connection."""
        while self.receive():
            pass

    def named(self, kind: str) -> dict[str, Any]:
        """Return the one message of this type."""
        (found,) = [each for each in self.messages if each["type"] == kind]
        return found

    def say(self, kind: str, **members: Any) -> None:
        """Send a control message."""
        self.socket.send(json.dumps({"type": kind, **members}))

    @property
    def closed(self) -> tuple[int | None, str | None]:
        """The code and reason that the service has closed with."""
        return self.socket.close_code, self.socket.close_reason
