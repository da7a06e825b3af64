"""Connections to a server in a workspace: straight into its network, or through its agent.

Either way each one is a channel of the workspace's link, because the agent records it. Where it
leads straight there, the channel carries nothing but how much went over it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from runs.gateway.link import Channel
from runs.preview.byte_stream import ByteStream, Gone
from runs.preview.refusal_pages import PreviewRefused

MOST_TOLD_BYTES = 4096
CLOSE_SECONDS = 5.0
"""How long a server may take to accept what was written before a close."""


class PortClosed(Gone):
    """The connection to the server in the workspace is gone."""


class ServerConnection(Protocol):
    """A connection to a port. One coroutine may read while another one writes."""

    on_end: Callable[[], None] | None
    """Called when the server ends it while it is kept for another request."""

    @property
    def is_over(self) -> bool:
        """Whether the server takes nothing more."""

    @property
    def is_cut_off(self) -> bool:
        """Whether it ended because the workspace went away, and not because its server said so."""

    @property
    def is_idle(self) -> bool:
        """Whether it could take another request: nothing has come, and nothing has ended."""

    async def read(self, seconds: float) -> bytes:
        """Return what has come, ``b""`` at the end. Raises ``TimeoutError``."""

    async def write(self, data: bytes, seconds: float) -> None:
        """Send, and wait until more may come. Raises ``PortClosed`` and ``TimeoutError``."""

    def write_eof(self) -> None:
        """Send nothing more."""

    def close(self) -> None:
        """Hang up."""

    def report(self) -> None:
        """Have the record know how much has gone over it so far."""


class ChannelUser:
    """What a channel of the link tells until it is over."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.channel: Channel | None = None
        self.is_cut_off = False
        """Whether the workspace went away before the server ended it."""
        self._over = False

    def attach(self, channel: Channel) -> None:
        """Know the channel that it is."""
        self.channel = channel

    def opened(self) -> None:
        """Know that it has begun."""
        if not self.answered.done():
            self.answered.set_result(None)

    def refused(self, code: str, message: str) -> None:
        """Know that it has not."""
        if not self.answered.done():
            status = 503 if code in ("access-not-recorded", "too-many") else 502
            shown = code if code in ("access-not-recorded", "nothing-listens") else "connect-failed"
            self.answered.set_exception(PreviewRefused(status, shown, message))
        self._end()

    def output(self, data: bytes, *, error: bool) -> None:
        """Take what comes over it: nothing, unless it is overridden."""

    def output_ended(self) -> None:
        """Know that no more comes."""

    def exited(self, code: int | None, signal: str | None, reason: str) -> None:
        """Know that it is over."""
        self._end()

    def may_write(self) -> None:
        """Let more be sent."""

    def lost(self) -> None:
        """Know that the workspace is gone, and this with it."""
        if not self.answered.done():
            self.answered.set_exception(unreachable("its agent has ended"))
        self.is_cut_off = not self._over
        self._end()

    def _end(self) -> None:
        self._over = True
        if self.answered.done() and not self.answered.cancelled():
            self.answered.exception()  # perhaps nobody waits for it any more


class DirectConnection(ByteStream, ChannelUser):
    """A TCP connection that was made inside the workspace's network."""

    gone = PortClosed

    def __init__(self) -> None:
        ByteStream.__init__(self)
        ChannelUser.__init__(self)
        self.on_end: Callable[[], None] | None = None
        self._reported = (0, 0)

    @property
    def addresses(self) -> list[tuple[socket.AddressFamily, str]]:
        """Where the agent says that the server listens; nothing when it says no such thing."""
        told = b"" if self.channel is None else self.channel.told
        try:
            listed = json.loads(told[:MOST_TOLD_BYTES])["addresses"]
            found = [ipaddress.ip_address(each) for each in listed if isinstance(each, str)]
        except (ValueError, KeyError, TypeError, RecursionError):
            return []
        families = {4: socket.AF_INET, 6: socket.AF_INET6}
        return [(families[each.version], str(each)) for each in found]

    @property
    def is_over(self) -> bool:
        """Whether the server takes nothing more."""
        return self._lost or self._over

    @property
    def is_idle(self) -> bool:
        """Whether it could take another request: nothing has come, and nothing has ended."""
        return not (self._ended or self._over or self._pieces)

    def eof_received(self) -> bool:
        """Know that the server sends nothing more."""
        super().eof_received()
        self._tell_end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Know that it is gone."""
        super().connection_lost(exc)
        self._tell_end()

    def close(self) -> None:
        """Hang up, and have it recorded."""
        if self.channel is not None and not self._over:
            self._report("ended" if self._ended else "client")
            self.channel.close()
        self._end()

    def report(self) -> None:
        """Have the record know how much has gone over it so far."""
        if self._reported != (self.sent_bytes, self.received_bytes) and not self._over:
            self._report("client")

    def _report(self, reason: str) -> None:
        assert self.channel is not None
        self._reported = (self.sent_bytes, self.received_bytes)
        told = {
            "sentBytes": self.sent_bytes,
            "receivedBytes": self.received_bytes,
            "reason": reason,
        }
        self.channel.write(json.dumps(told).encode())

    def _end(self) -> None:
        # Without its agent nothing of it would be recorded any more.
        ChannelUser._end(self)
        if self._transport is not None:
            self._transport.close()
            if self._transport.get_write_buffer_size():
                # A server that takes nothing would hold it open for ever.
                self._loop.call_later(CLOSE_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self._transport is not None and not self._lost:
            self._transport.abort()

    def _tell_end(self) -> None:
        if self.on_end is not None:
            self.on_end()


class RelayedConnection(ChannelUser):
    """A connection that the agent makes and passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.on_end: Callable[[], None] | None = None
        self._pieces: deque[bytes] = deque()
        self._ended = False
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the server takes nothing more."""
        return self._over

    @property
    def is_idle(self) -> bool:
        """Whether it could take another request: nothing has come, and nothing has ended."""
        return not (self._ended or self._over or self._pieces)

    async def read(self, seconds: float) -> bytes:
        """Return what has come, ``b""`` at the end. Raises ``TimeoutError``."""
        if not self._pieces and not self._ended:
            self._readable = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(seconds):
                await self._readable
        if not self._pieces:
            return b""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self.channel is not None:
            self.channel.consumed(len(data))
        return data

    async def write(self, data: bytes, seconds: float) -> None:
        """Send, and wait until more may come. Raises ``PortClosed`` and ``TimeoutError``."""
        if self.channel is None:
            raise PortClosed
        # Before it, too: many connections share the link, and what all of them add at once is much.
        await self._until_writable(self.channel, seconds)
        if not self.channel.write(data):
            await self._until_writable(self.channel, seconds)

    async def _until_writable(self, channel: Channel, seconds: float) -> None:
        while channel.full and not self._over:
            self._writable = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(seconds):
                await self._writable
        if self._over:
            raise PortClosed

    def write_eof(self) -> None:
        """Send nothing more."""
        if self.channel is not None:
            self.channel.write_eof()

    def close(self) -> None:
        """Hang up."""
        if self.channel is not None:
            self.channel.close()
        self._end()

    def report(self) -> None:
        """Do nothing: the agent has seen it all."""

    def output(self, data: bytes, *, error: bool) -> None:
        """Keep what has come; the window bounds how much that can be."""
        self._pieces.append(data)
        self._wake_reader()

    def output_ended(self) -> None:
        """Know that no more comes."""
        self._ended = True
        self._wake_reader()

    def may_write(self) -> None:
        """Let more be sent."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _end(self) -> None:
        super()._end()
        self._ended = True
        self._wake_reader()
        self.may_write()

    def _wake_reader(self) -> None:
        if self._readable is not None and not self._readable.done():
            self._readable.set_result(None)
        if self._ended and self.on_end is not None:
            self.on_end()


def unreachable(why: str) -> PreviewRefused:
    """Return what is said of a workspace to which there is no way now."""
    detail = f"The workspace cannot be reached at the moment: {why.rstrip('.')}."
    return PreviewRefused(502, "workspace-unreachable", detail, retry=5)
