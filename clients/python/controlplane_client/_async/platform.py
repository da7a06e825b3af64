"""What asyncio does in its own way; ``_sync/platform.py`` has the same for threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

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
