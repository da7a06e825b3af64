"""What asyncio does in its own way; ``_sync/platform.py`` has the same for threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from controlplane_client.web_sockets import MOST_BYTES, NEEDED, Closed, Refused

T = TypeVar("T")
P = ParamSpec("P")


async def sleep(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


async def blocking(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what works with this machine's files, without holding up others."""
    return await asyncio.to_thread(function, *args, **kwargs)


async def tell(callback: Callable[[Any], Any] | None, value: object) -> None:
    """Call back, and wait for a callback that is a coroutine."""
    if callback is not None:
        answer = callback(value)
        if inspect.isawaitable(answer):
            await answer


class AsyncLock(asyncio.Lock):
    """For one at a time."""


class AsyncWebSocket:
    """A WebSocket; raises ``Closed`` once it is over."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def receive(self) -> bytes | str:
        """Return the next message."""
        from websockets.exceptions import ConnectionClosed

        try:
            message: bytes | str = await self._connection.recv()
        except (ConnectionClosed, OSError) as error:
            raise Closed(str(error)) from error
        return message

    async def send(self, message: bytes | str) -> None:
        """Send a message."""
        from websockets.exceptions import ConnectionClosed

        try:
            await self._connection.send(message)
        except (ConnectionClosed, OSError) as error:
            raise Closed(str(error)) from error

    async def aclose(self) -> None:
        """Close it."""
        await self._connection.close()


async def open_web_socket(url: str, headers: Mapping[str, str]) -> AsyncWebSocket:
    """Open one; raises ``Refused`` for another answer, ``Closed`` when there is none."""
    try:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake, InvalidStatus
    except ImportError as error:
        raise ImportError(NEEDED) from error
    try:
        made = await connect(url, additional_headers=dict(headers), max_size=MOST_BYTES)
    except InvalidStatus as error:
        raise Refused(error.response.status_code, bytes(error.response.body or b"")) from error
    except (InvalidHandshake, OSError, EOFError) as error:
        raise Closed(str(error) or type(error).__name__) from error
    return AsyncWebSocket(made)
