"""A connection that one coroutine reads while another one writes: who sends waits for who takes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

HIGH_BYTES = 256 * 1024


class Gone(Exception):
    """The other side of a connection is gone."""


class ByteStream(asyncio.Protocol):
    """The bytes from and to one side."""

    gone: type[Gone] = Gone
    """What is raised when nothing can be written any more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._held = False
        self._ended = False
        self._lost = False
        self._paused = False
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.sent_bytes = 0
        self.received_bytes = 0

    # -------------------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        """Keep what has come until it is read."""
        self._pieces.append(data)
        self._size += len(data)
        self.received_bytes += len(data)
        if self._size > HIGH_BYTES and not self._held and self._transport is not None:
            self._held = True
            self._transport.pause_reading()
        self._wake(self._readable)

    def eof_received(self) -> bool:
        """Know that it sends nothing more; it may still take something."""
        self._ended = True
        self._wake(self._readable)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Know that it is gone."""
        self._lost = self._ended = True
        self._stop_timer()
        self._wake(self._readable)
        self._wake(self._writable)

    def pause_writing(self) -> None:
        """Wait with what is to be sent."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on."""
        self._paused = False
        self._wake(self._writable)

    # -------------------------------------------------------------------------- for who uses it

    async def read(self, seconds: float) -> bytes:
        """Return what has come, ``b""`` at the end. Raises ``TimeoutError``."""
        if not self._pieces and not self._ended:
            await self._until_readable(seconds)
        if not self._pieces:
            return b""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._held and self._transport is not None and not self._lost:
            self._held = False
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes, seconds: float) -> None:
        """Send, and wait until more may be sent. Raises ``gone`` and ``TimeoutError``."""
        if self._lost or self._transport is None:
            raise self.gone
        self._transport.write(data)
        self.sent_bytes += len(data)
        while self._paused:
            self._writable = self._loop.create_future()
            async with asyncio.timeout(seconds):
                await self._writable
            if self._lost:
                raise self.gone

    def write_eof(self) -> None:
        """Send nothing more."""
        transport = self._transport
        if transport is not None and not self._lost and not transport.is_closing():
            transport.write_eof()

    async def _until_readable(self, seconds: float) -> None:
        self._readable = self._loop.create_future()
        self._deadline = self._loop.time() + seconds
        # One timer serves many waits: most of them are over long before.
        if self._timer is None or self._timer.when() > self._deadline:
            self._stop_timer()
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)
        await self._readable

    def _check_deadline(self) -> None:
        self._timer = None
        if self._readable is None or self._readable.done():
            return
        if self._loop.time() >= self._deadline:
            self._readable.set_exception(TimeoutError())
        else:
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @staticmethod
    def _wake(waiting: asyncio.Future[None] | None) -> None:
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
