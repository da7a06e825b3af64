"""What takes as long as it takes is done beside the loop, which answers keys meanwhile."""

from __future__ import annotations

import _thread
import signal
from typing import Any, Callable


def aside(call: Callable[..., None], *arguments: Any) -> None:
    """Have it called in a thread that ends with it; without room for one it is done at once.

    It must raise nothing, and hold nothing that a forked child needs.
    """
    # Signals are for the loop. A thread has the mask of who starts it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        _thread.start_new_thread(call, arguments)
    except RuntimeError:
        call(*arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
