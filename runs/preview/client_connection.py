"""The connection of a client: who it is, and whether it is still there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from typing import Any, Protocol

import structlog

from runs.preview.byte_stream import ByteStream, Gone
from runs.preview.preview_settings import PreviewSettings

_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)

logger = structlog.get_logger(__name__)


class ClientGone(Gone):
    """Nobody is there to be answered."""


class Host(Protocol):
    """Where clients arrive."""

    settings: PreviewSettings

    def arrived(self, client: ClientConnection) -> bytes | None:
        """Know of a client; return an answer for one that is not served."""

    def left(self, client: ClientConnection) -> None:
        """Know that it is gone."""

    def serve(self, client: ClientConnection) -> Coroutine[Any, Any, None]:
        """Answer its requests."""


class ClientConnection(ByteStream):
    """The bytes from and to a client."""

    gone = ClientGone

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host
        self._task: asyncio.Task[None] | None = None
        self.is_waiting = True
        """Whether no request is under way."""
        self.is_tunnel = False
        """Whether the end of what it sends is passed on, and does not mean that it has gone."""
        self.peer = ""
        self.is_proxy = False
        """Whether it may say for whom it asks."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve it."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        # A WebSocket may be silent for long; whoever has vanished must not keep it open.
        for level, option, value in _KEEP_ALIVE:
            sock.setsockopt(level, option, value)
        self.peer = str((transport.get_extra_info("peername") or [""])[0])
        self.is_proxy = self._host.settings.trusts(self.peer)
        refusal = self._host.arrived(self)
        if refusal is not None:
            assert self._transport is not None
            self._transport.write(refusal)
            self.close()
            return
        self._task = self._loop.create_task(self._host.serve(self))
        self._task.add_done_callback(self._served)

    def eof_received(self) -> bool:
        """Know that it sends nothing more; while it waits for an answer it is gone."""
        super().eof_received()
        if not self.is_tunnel and not self.is_waiting and self._task is not None:
            self._task.cancel()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is under way for it."""
        super().connection_lost(exc)
        if self._task is not None:
            self._task.cancel()
        self._host.left(self)

    def close(self) -> None:
        """Close it, after what was written."""
        if self._transport is None or self._lost:
            return
        self._transport.close()
        if self._transport.get_write_buffer_size():
            # A client that takes nothing would hold it open for ever.
            self._loop.call_later(self._host.settings.stall, self.abort)

    def abort(self) -> None:
        """Close it without what was not sent yet."""
        if self._transport is not None and not self._lost:
            self._transport.abort()

    def reset(self) -> None:
        """Close it so that what was sent cannot be taken for complete."""
        if self._transport is not None and not self._lost:
            sock = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self._transport.abort()

    def dismiss(self) -> None:
        """End what is under way."""
        if self._task is not None:
            self._task.cancel()

    def _served(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("preview_failed", exc_info=error)
            self.abort()
        self.close()


_AT_ONCE = b"\1\0\0\0\0\0\0\0"
