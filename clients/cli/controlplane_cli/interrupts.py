"""What ctrl-C does: the first one is for what was started, the second one leaves."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

LEFT = 130
"""The exit code of a command that was left with ctrl-C."""


@contextlib.contextmanager
def first_for(act: Callable[[], None]) -> Iterator[None]:
    """At the first ctrl-C call ``act`` beside what goes on; at the second raise KeyboardInterrupt.

    ``act`` runs in a thread of its own, as what was interrupted may be in the middle of a request.
    """
    threads: list[threading.Thread] = []

    def interrupted(number: int, frame: FrameType | None) -> None:
        if threads:
            raise KeyboardInterrupt
        threads.append(threading.Thread(target=act, daemon=True))
        threads[0].start()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
