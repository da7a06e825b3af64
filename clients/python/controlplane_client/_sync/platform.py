"""What threads do in their own way; ``_async/platform.py`` has the same for asyncio."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

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
