"""Things that are costly to make, each kept for a while for whoever needs one next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Spare(Generic[T]):
    key: Hashable
    thing: T
    timer: threading.Timer


class Spares(Generic[T]):
    """At most ``most`` things, each disposed of when nobody took it within ``seconds``.

    ``dispose`` is called on a thread of its own, or on that of whoever gives one too many.
    """

    def __init__(self, *, seconds: float, most: int, dispose: Callable[[T], None]) -> None:
        self._seconds = seconds
        self._most = most
        self._dispose = dispose
        self._lock = threading.Lock()
        self._spares: list[_Spare[T]] = []

    def take(self, key: Hashable) -> T | None:
        """Return one that was given with this key, the one that was given last; None without."""
        with self._lock:
            spare = next((each for each in reversed(self._spares) if each.key == key), None)
            if spare is None:
                return None
            self._spares.remove(spare)
        spare.timer.cancel()
        return spare.thing

    def give(self, key: Hashable, thing: T) -> None:
        """Keep one for whoever asks for this key."""
        timer = threading.Timer(self._seconds, lambda: self._expire(spare))
        timer.name, timer.daemon = "spare", True
        spare = _Spare(key, thing, timer)
        with self._lock:
            if len(self._spares) < self._most:
                with suppress(RuntimeError):  # no thread is to be had, so that nothing would end it
                    timer.start()
                    self._spares.append(spare)
                    return
        self._dispose(thing)

    def _expire(self, spare: _Spare[T]) -> None:
        with self._lock:
            if spare not in self._spares:
                return  # taken at the last moment
            self._spares.remove(spare)
        self._dispose(spare.thing)
