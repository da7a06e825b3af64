"""Signals as events of the supervisor's loop.

A handler only notes the signal; a byte on a pipe (`signal.set_wakeup_fd`) ends the loop's wait. So
nothing polls, and nothing happens between two lines of unrelated code.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import List, Optional

# What a container's operator may send to PID 1 and what the foreground may expect to receive.
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)

# Python ignores these two; programs expect them to be deadly.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class SignalQueue:
    """Collects the forwarded signals and SIGCHLD from the moment it is made."""

    def __init__(self) -> None:
        self._arrived: List[int] = []
        self.wake_fd, self._write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._write_fd, False)
        # A full pipe already wakes the loop, so a byte that does not fit is no loss.
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in FORWARDED:
            signal.signal(number, self._note)
        signal.signal(signal.SIGCHLD, _wake_only)

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        self._arrived.append(number)

    def drain(self) -> None:
        """Empty the pipe, so that the next wait really waits."""
        try:
            while os.read(self.wake_fd, 4096):
                pass
        except BlockingIOError:
            pass

    def take(self) -> List[int]:
        """The signals that have arrived since the last call, in order."""
        arrived, self._arrived = self._arrived, []
        return arrived


def _wake_only(number: int, frame: Optional[FrameType]) -> None:
    """SIGCHLD needs a handler for the wakeup byte to be written; reaping is the loop's work."""


def forget_handlers() -> None:
    """In a forked child: no handler of its parent runs in it."""
    signal.set_wakeup_fd(-1)
    for number in (*FORWARDED, signal.SIGCHLD, *_IGNORED_BY_PYTHON):
        signal.signal(number, signal.SIG_DFL)


def restore_defaults() -> None:
    """In a forked child, before exec: the signal state that a program expects."""
    forget_handlers()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def name_of(number: int) -> str:
    """`SIGKILL` for 9; `SIG37` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
