"""An event that ends waits for locks and for descriptors alike."""

from __future__ import annotations

import os
import threading


class StopEvent(threading.Event):
    """Set once. :meth:`fileno` is readable from then on."""

    def __init__(self) -> None:
        super().__init__()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return a descriptor for ``poll``; it lives as long as the event."""
        return self._fd

    def set(self) -> None:
        """Set the event and make its descriptor readable."""
        super().set()
        os.eventfd_write(self._fd, 1)

    def __del__(self) -> None:
        os.close(self._fd)
