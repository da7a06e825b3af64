"""What a connection may take: time for the head of a request, and time to take an answer."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_SECONDS = 75
WRITE_SECONDS = 60.0


class BoundedConnection(H11Protocol):
    """HTTP/1.1 as uvicorn has it, which waits for some things without end.

    The facade has so many connections and no more: those of clients that say nothing, or that take
    nothing, would keep all others out.
    """

    head_seconds: float = IDLE_SECONDS
    """Within which a head has to be complete, from the start or the end of the last answer on."""
    write_seconds: float = WRITE_SECONDS
    """Within which a client has to take some of what waits for it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._stop_head_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Answer requests whose head is there."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_head_timer()

    def on_response_complete(self) -> None:
        """Wait for the next head, or for a connection that is closed to be gone."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._wait_for_head()

    def pause_writing(self) -> None:
        """Wait until the client takes some of what it was sent."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Send on."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def _wait_for_head(self) -> None:
        self._stop_head_timer()
        # Closing it would wait for a client that takes nothing of an answer.
        self._head_timer = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
