"""The channels of a session: each with its own windows, so that a slow one holds up no other."""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Deque, Dict, Optional, Protocol, Tuple

from ..execution.leader import Audience, Leader
from ..record.frames import Stream
from .channel import (
    GRANT_BYTES,
    INITIAL_WINDOW,
    MAX_DATA,
    WINDOW,
    ChannelError,
    ToClient,
)

_MOST_WINDOW = 0xFFFFFFFF
# What a program has left behind at its end is taken past the window, and kept for the client.
_LEFT_BEHIND_BYTES = 1024 * 1024
_PROMPT_BYTES = 4096


class Link(Protocol):
    """What a channel needs of the connection that it is part of."""

    @property
    def listens(self) -> bool:
        """Whether the client is there to be given output."""

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Append a frame to what is sent."""

    def flush(self) -> None:
        """Send now."""

    def forget(self, channel: int) -> None:
        """The channel is over."""


class Channel:
    """One channel: what both sides may still send, and what that means for its kind."""

    def __init__(self, link: Link, number: int) -> None:
        self.number = number
        self.room = INITIAL_WINDOW
        """How many bytes the client takes."""
        self._link = link
        self._receivable = INITIAL_WINDOW
        self._ungranted = 0

    def take(self, data: bytes) -> None:
        """DATA. Raises ChannelError for more than the window or a frame allows."""
        if len(data) > MAX_DATA:
            raise ChannelError(f"{len(data)} bytes of data in a frame; {MAX_DATA} are allowed")
        if len(data) > self._receivable:
            raise ChannelError(
                f"{len(data)} bytes for channel {self.number}, which takes {self._receivable}"
            )
        self._receivable -= len(data)
        self.give(data)

    def widen(self, count: int) -> None:
        """WINDOW: the client takes more."""
        if self.room + count > _MOST_WINDOW:
            raise ChannelError(f"a window of more than {_MOST_WINDOW} bytes")
        self.room += count

    def consumed(self, count: int) -> None:
        """So many bytes have been passed on; the client is told from time to time."""
        self._ungranted += count
        if self._ungranted >= GRANT_BYTES:
            self._receivable += self._ungranted
            self.say(ToClient.WINDOW, WINDOW.pack(self._ungranted))
            self._ungranted = 0

    def send(self, kind: int, data: bytes) -> None:
        """Send output that the window allows."""
        self.room -= len(data)
        if len(data) <= MAX_DATA:
            self.say(kind, data)
            return
        for start in range(0, len(data), MAX_DATA):
            self.say(kind, data[start : start + MAX_DATA])

    def say(self, kind: int, payload: bytes = b"") -> None:
        """Send a frame of this channel."""
        self._link.send(kind, self.number, payload)

    def tell(self, kind: int, value: Dict[str, Any]) -> None:
        """The same with JSON."""
        self.say(kind, json.dumps(value).encode())

    # What the kinds of channels do.

    def give(self, data: bytes) -> None:
        """The client's bytes."""

    def end_input(self) -> None:
        """EOF."""

    def resize(self, columns: int, rows: int) -> None:
        """RESIZE."""

    def signal(self, number: int) -> None:
        """SIGNAL."""

    def close(self) -> None:
        """CLOSE: the client wants nothing more of it."""

    def leave(self) -> None:
        """The client is not there any longer."""


class ProgramChannel(Channel, Audience):
    """A channel whose other end is a program."""

    def __init__(self, link: Link, number: int, grace_seconds: float) -> None:
        super().__init__(link, number)
        self.leader: Optional[Leader] = None
        self._grace_seconds = grace_seconds
        self._closed = False
        self._refused = False
        self._backlog: Deque[Tuple[int, bytes]] = deque()
        self._kept = 0
        self._exit: Optional[Dict[str, Any]] = None

    # For the program.

    def sink(self, stream: int) -> _Sink:
        return _Sink(self, ToClient.STDERR if stream == Stream.STDERR else ToClient.STDOUT)

    def ended(self, exit: Dict[str, Any]) -> None:
        self._exit = exit
        self._pump()

    @property
    def takes(self) -> int:
        """How many bytes may be read of the program now."""
        if self._closed or not self._link.listens:
            return MAX_DATA
        if self.leader is not None and self.leader.exit is not None:
            return max(_LEFT_BEHIND_BYTES - self._kept, 0)
        return 0 if self._backlog else self.room

    def show(self, kind: int, data: bytes) -> None:
        """The program has written this."""
        if self._closed or not self._link.listens:
            return
        if not self._backlog and len(data) <= self.room:
            self.send(kind, data)
            if len(data) <= _PROMPT_BYTES:
                # What a key has brought about is shown before it is recorded.
                self._link.flush()
            return
        self._backlog.append((kind, data))
        self._kept += len(data)
        self._pump()

    # For the client.

    def discard(self) -> None:
        """It was never opened: nobody is told of its end."""
        self._refused = True

    def leave(self) -> None:
        self._pump()

    def widen(self, count: int) -> None:
        super().widen(count)
        self._pump()

    def give(self, data: bytes) -> None:
        if self.leader is not None:
            self.leader.give(data)

    def end_input(self) -> None:
        if self.leader is not None:
            self.leader.end_input()

    def resize(self, columns: int, rows: int) -> None:
        if self.leader is not None:
            self.leader.resize(columns, rows)

    def signal(self, number: int) -> None:
        if self.leader is not None:
            self.leader.signal(number, "client")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.leader is not None:
            self.leader.hang_up(self._grace_seconds)
        self._pump()

    def _pump(self) -> None:
        if self._closed or not self._link.listens:
            self._backlog.clear()
            self._kept = 0
        while self._backlog and self.room:
            kind, data = self._backlog.popleft()
            if len(data) > self.room:
                self._backlog.appendleft((kind, data[self.room :]))
                data = data[: self.room]
            self._kept -= len(data)
            self.send(kind, data)
        if self._exit is not None and not self._backlog and not self._refused:
            self.tell(ToClient.EXIT, self._exit)
            self._link.forget(self.number)


class _Sink:
    """One stream of a program, on its way into its channel."""

    def __init__(self, channel: ProgramChannel, kind: int) -> None:
        self._channel = channel
        self._kind = kind

    def room(self) -> int:
        return self._channel.takes

    def take(self, data: bytes) -> None:
        self._channel.show(self._kind, data)
