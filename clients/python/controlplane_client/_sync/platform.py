"""What threads do in their own way; ``_async/platform.py`` has the same for asyncio."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from controlplane_client.web_sockets import MOST_BYTES, NEEDED, Closed, Refused

T = TypeVar("T")
P = ParamSpec("P")


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def blocking(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what works with this machine's files."""
    return function(*args, **kwargs)


def tell(callback: Callable[[Any], Any] | None, value: object) -> None:
    """Call back."""
    if callback is not None:
        callback(value)


class Lock:
    """For one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class WebSocket:
    """A WebSocket; raises ``Closed`` once it is over."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def receive(self) -> bytes | str:
        """Return the next message."""
        from websockets.exceptions import ConnectionClosed

        try:
            message: bytes | str = self._connection.recv()
        except (ConnectionClosed, OSError) as error:
            raise Closed(str(error)) from error
        return message

    def send(self, message: bytes | str) -> None:
        """Send a message."""
        from websockets.exceptions import ConnectionClosed

        try:
            self._connection.send(message)
        except (ConnectionClosed, OSError) as error:
            raise Closed(str(error)) from error

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def open_web_socket(url: str, headers: Mapping[str, str]) -> WebSocket:
    """Open one; raises ``Refused`` for another answer, ``Closed`` when there is none."""
    try:
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect
    except ImportError as error:
        raise ImportError(NEEDED) from error
    try:
        # Entered as in a ``with`` block, which newer releases ask for; ``close`` leaves it.
        made = connect(url, additional_headers=dict(headers), max_size=MOST_BYTES).__enter__()
    except InvalidStatus as error:
        raise Refused(error.response.status_code, bytes(error.response.body or b"")) from error
    except (InvalidHandshake, OSError, EOFError) as error:
        raise Closed(str(error) or type(error).__name__) from error
    return WebSocket(made)
