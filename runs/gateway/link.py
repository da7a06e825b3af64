"""One ``agent session``: its frames, taken apart for the channels, and what each may still send.

What comes out of a workspace is not trusted: whoever has root there may answer in the agent's
place. A frame that none of us would send ends the session with words; nothing it can do makes us
keep more than the windows allow.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog

from runs.agent.session.channel import (
    GRANT_BYTES,
    HEADER,
    INITIAL_WINDOW,
    MAX_DATA,
    WINDOW,
    ChannelError,
    Frame,
    FrameDecoder,
    FromClient,
    ToClient,
    encode_frame,
)
from runs.gateway.texts import one_line

MAX_CONTROL_BYTES = 64 * 1024
LOGGED_COMPLAINTS = 20
MAX_WAITING_BYTES = 8 * 1024 * 1024
"""So much is kept for an agent that takes nothing; input alone comes to less."""
MAX_CHANNELS = 512
"""Those count too that the client has closed and the agent has not ended yet."""


class LinkError(Exception):
    """The session cannot be begun or has ended; the message is one line for the person."""


class Stream(Protocol):
    """The bytes to and from the agent."""

    @property
    def waiting_bytes(self) -> int:
        """How much of what was written has not gone out."""

    def write(self, data: bytes) -> None:
        """Send these bytes."""

    def close(self) -> None:
        """Send what was written, then nothing any more."""

    def errors(self) -> str:
        """Return the end of what it said beside its output."""


class User(Protocol):
    """What a channel of a link is for. Called in the event loop; must not block."""

    def opened(self) -> None:
        """It has begun."""

    def refused(self, code: str, message: str) -> None:
        """It was not begun, and is over."""

    def output(self, data: bytes, *, error: bool) -> None:
        """Take what it puts out, and say ``consumed`` once that is passed on."""

    def output_ended(self) -> None:
        """Nothing more comes out of it, but it still takes input."""

    def exited(self, code: int | None, signal: str | None, reason: str) -> None:
        """It is over, and all of its output was told before."""

    def may_write(self) -> None:
        """After ``write`` returned False: it takes input again."""

    def lost(self) -> None:
        """The session is over, and this with it."""


class Channel:
    """One program or forward in a session."""

    def __init__(self, link: Link, number: int, user: User) -> None:
        self.number = number
        self.user = user
        self.over = False
        self.told = b""
        """What the agent has said when it opened it; not trusted."""
        self.takes = INITIAL_WINDOW
        """How many bytes the agent takes of us."""
        self.gives = INITIAL_WINDOW
        """How many bytes it may still send."""
        self._consumed = 0
        self._link = link
        self._held = b""
        self._ending = False

    @property
    def full(self) -> bool:
        """Whether input has to wait."""
        return bool(self._held) or self.takes == 0 or self._link.full

    def write(self, data: bytes) -> bool:
        """Send input, or keep it; False when no more should come until ``may_write``."""
        if self.over:
            return True
        self._held = self._held + data if self._held else data
        self.flush()
        return not self.full

    def write_eof(self) -> None:
        """End the input, after what was written."""
        self._ending = True
        self.flush()

    def flush(self) -> None:
        """Send what may be sent."""
        while self._held and self.takes and not self.over:
            piece = self._held[: min(self.takes, MAX_DATA)]
            self._held = self._held[len(piece) :]
            self.takes -= len(piece)
            self._link.send(FromClient.DATA, self.number, piece)
        if self._ending and not self._held and not self.over:
            self._ending = False
            self._link.send(FromClient.EOF, self.number)

    def consumed(self, count: int) -> None:
        """Know that output has been passed on; now and then the agent is told."""
        self._consumed += count
        if self._consumed >= GRANT_BYTES and not self.over:
            self.gives += self._consumed
            self._link.send(FromClient.WINDOW, self.number, WINDOW.pack(self._consumed))
            self._consumed = 0

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size."""
        size = json.dumps({"columns": columns, "rows": rows}).encode()
        self._link.send(FromClient.RESIZE, self.number, size)

    def signal(self, name: str) -> None:
        """Send the program a signal."""
        self._link.send(FromClient.SIGNAL, self.number, name.encode())

    def close(self) -> None:
        """Know that the client has closed it: hang up."""
        if not self.over:
            self.over = True
            self._held = b""
            self._link.send(FromClient.CLOSE, self.number)


class Link:
    """A session from its spec to its end. ``begin`` makes one."""

    def __init__(self, log: structlog.stdlib.BoundLogger, ended: Callable[[], None]) -> None:
        self.log = log
        self.full = False
        """Whether the engine takes no more for now."""
        self.is_over = False
        self.failure = ""
        """What the agent, or this side, said was wrong."""
        self.last_reason = ""
        """Why the program that ended last did."""
        self.used_at = asyncio.get_running_loop().time()
        """When bytes of a channel went either way."""
        self.stream: Stream | None = None
        self.told = b""
        """What the agent has said when it was ready; not trusted."""
        self._ended = ended
        self._decoder = FrameDecoder()
        self._channels: dict[int, Channel] = {}
        self._next = 1
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_ready = False
        self._complaints = 0

    async def begin(
        self,
        stream: Awaitable[Stream],
        spec: Awaitable[dict[str, Any]],
        *,
        timeout: float,
    ) -> None:
        """Send the spec as soon as both are there, and wait until everything is recorded.

        Raises ``LinkError``, and what the two raise.
        """
        self.stream = await stream
        if self.is_over:
            # The client has gone away while the engine was starting the agent.
            self.stream.close()
            raise LinkError(self.failure or "the session has ended")
        self.send(FromClient.SPEC, 0, json.dumps(await spec).encode())
        try:
            async with asyncio.timeout(timeout):
                await self._ready
        except TimeoutError:
            raise LinkError("the workspace's agent does not answer") from None

    def open(self, request: dict[str, Any], user: User) -> Channel:
        """Ask for a program or a forward. Raises ``LinkError`` when the session is over."""
        if self.is_over or not self._is_ready:
            raise LinkError("the session has ended")
        if len(self._channels) >= MAX_CHANNELS:
            raise LinkError("too many programs of this session are still running")
        channel = Channel(self, self._next, user)
        self._channels[self._next] = channel
        self._next += 1
        self.send(FromClient.OPEN, channel.number, json.dumps(request).encode())
        return channel

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Send one frame."""
        if self.stream is not None and not self.is_over:
            if kind == FromClient.DATA:
                self.used_at = asyncio.get_running_loop().time()
                self.stream.write(HEADER.pack(kind, channel, len(payload)))
                self.stream.write(payload)
            else:
                self.stream.write(encode_frame(kind, channel, payload))
            if self.stream.waiting_bytes > MAX_WAITING_BYTES:
                self.close("the session in the workspace takes no more of what is sent to it")

    def close(self, why: str = "") -> None:
        """End the session: the agent hangs up what still runs in it."""
        self.failure = self.failure or why
        self._end()

    # ------------------------------------------------------------------------ what the stream calls

    def output_received(self, data: bytes) -> None:
        """Take the next bytes of the agent."""
        if self.is_over:
            return
        self._decoder.feed(data)
        try:
            while (frame := self._decoder.take()) is not None:
                self._obey(frame)
                if self.is_over:
                    return
        except (ChannelError, struct.error, ValueError, AttributeError, RecursionError) as error:
            detail = str(error) if isinstance(error, ChannelError) else type(error).__name__
            self.log.warning("agent_broke_protocol", detail=one_line(detail))
            self.close(
                "the workspace's agent does not speak this gateway's protocol; "
                "start the workspace again"
            )

    def input_paused(self) -> None:
        """Have the channels wait."""
        self.full = True

    def input_resumed(self) -> None:
        """Have them go on."""
        self.full = False
        for channel in list(self._channels.values()):
            if not channel.full:
                channel.user.may_write()

    def output_ended(self) -> None:
        """Know that the agent has ended, or its container, or the engine."""
        self._end()

    # ----------------------------------------------------------------------------------- the frames

    def _obey(self, frame: Frame) -> None:
        if frame.channel:
            self._obey_channel(frame)
        elif frame.type == ToClient.READY:
            self._is_ready = True
            self.told = frame.payload[:MAX_CONTROL_BYTES]
            if not self._ready.done():
                self._ready.set_result(None)
        elif frame.type == ToClient.ERROR:
            self.close(f"the session was refused: {_message(frame.payload)}")
        else:
            raise ChannelError(f"a frame of type {frame.type} for the connection")

    def _obey_channel(self, frame: Frame) -> None:
        if frame.channel >= self._next:
            raise ChannelError(f"a frame for channel {frame.channel}, which was never opened")
        channel = self._channels.get(frame.channel)
        if channel is None:
            return
        if frame.type in (ToClient.STDOUT, ToClient.STDERR):
            size = len(frame.payload)
            channel.gives -= size
            if channel.gives < 0:
                raise ChannelError("more output than was asked for")
            if channel.over:
                return
            self.used_at = asyncio.get_running_loop().time()
            channel.user.output(frame.payload, error=frame.type == ToClient.STDERR)
        elif len(frame.payload) > MAX_CONTROL_BYTES:
            raise ChannelError(f"a frame of type {frame.type} with {len(frame.payload)} bytes")
        elif frame.type == ToClient.WINDOW:
            channel.takes += WINDOW.unpack(frame.payload)[0]
            channel.flush()
            if not channel.full and not channel.over:
                channel.user.may_write()
        elif frame.type == ToClient.EXIT:
            said = json.loads(frame.payload)
            self.last_reason = str(said.get("reason") or "")
            if self._forget(channel):
                code, signal = said.get("code"), said.get("signal")
                channel.user.exited(
                    code if isinstance(code, int) else None,
                    signal if isinstance(signal, str) else None,
                    self.last_reason,
                )
        elif frame.type == ToClient.REFUSED:
            said = json.loads(frame.payload)
            if self._forget(channel):
                channel.user.refused(str(said.get("code")), _message(frame.payload))
        elif frame.type == ToClient.OPENED:
            channel.told = frame.payload
            if not channel.over:
                channel.user.opened()
        elif frame.type == ToClient.EOF:
            if not channel.over:
                channel.user.output_ended()
        elif frame.type == ToClient.ERROR:
            self._complaints += 1
            if self._complaints <= LOGGED_COMPLAINTS:
                self.log.info(
                    "agent_complained",
                    channel=frame.channel,
                    detail=_message(frame.payload),
                )
        else:
            raise ChannelError(f"a frame of type {frame.type} for a channel")

    def _forget(self, channel: Channel) -> bool:
        """Drop a channel that is over; tell whether its user is still there."""
        del self._channels[channel.number]
        was_over, channel.over = channel.over, True
        return not was_over

    def _end(self) -> None:
        if self.is_over:
            return
        if self.stream is not None:
            self.stream.close()
        self.is_over = True
        if not self._ready.done():
            self._ready.set_exception(
                LinkError(self.failure or "the session in the workspace could not be started")
            )
            # Nobody may be waiting for it yet.
            self._ready.exception()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            if not channel.over:
                channel.over = True
                channel.user.lost()
        self._ended()


def _message(payload: bytes) -> str:
    try:
        said = json.loads(payload)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = None
    return one_line(said if isinstance(said, str) else "no reason was given", 300)
