"""How a run worker speaks to the recorder of one run."""

from __future__ import annotations

import contextlib
import os
import threading


class _Waking(threading.Event):
    """An event that ends a wait for bytes too."""

    def __init__(self, control: RunControl) -> None:
        super().__init__()
        self._control = control

    def set(self) -> None:
        super().set()
        self._control.wake()


class RunControl:
    """What the worker asks of a recorder. :meth:`fileno` is readable when it asks for something."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.stopped: threading.Event = _Waking(self)
        """The recorder gives the run up."""
        self.cancelled: threading.Event = _Waking(self)
        """The run is to end."""
        self.given: threading.Event = _Waking(self)
        """The run's program was given input."""

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 once it is closed."""
        return self._fd

    def wake(self) -> None:
        """Make :meth:`fileno` readable."""
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def seen(self) -> None:
        """Make it unreadable until the worker asks for something again."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._fd >= 0:
                os.eventfd_read(self._fd)

    def close(self) -> None:
        """Give the descriptor back; the events stay."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
