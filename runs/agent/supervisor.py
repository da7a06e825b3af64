"""The loop of PID 1: waits for signals, children, output and deadlines at once; never polls.

Everything runs in one thread. The phases of a boot are plain functions that call `turn` until what
they wait for has happened.
"""

from __future__ import annotations

import select
import signal
import time
from typing import Dict, List, NamedTuple, Optional, Sequence

from .output import Capture, ContainerOutput
from .process import Account, Child, StartError, start
from .reaper import (
    Reaper,
    adopt_orphans,
    anything_left,
    signal_everything,
    terminate_signals,
)
from .signals import SignalQueue

# Processes that entered the container from outside (`docker exec`) are not our children: their end
# sends no signal, so a shutdown looks for them at this interval.
_LOOK_SECONDS = 0.05
_AFTER_KILL_SECONDS = 2.0
_LAST_OUTPUT_SECONDS = 1.0


class Running(NamedTuple):
    """A started process and its output."""

    child: Child
    capture: Capture


class Supervisor:
    """Owns all children, their pipes, the container's stdout and the arriving signals."""

    def __init__(self, stdout_fd: int) -> None:
        adopt_orphans()
        self._signals = SignalQueue()
        self._reaper = Reaper()
        self._output = ContainerOutput(stdout_fd)
        self._captures: List[Capture] = []

    def start(
        self,
        argv: Sequence[str],
        *,
        account: Account,
        cwd: str,
        env: Dict[str, str],
        tail_bytes: int,
        secrets: Sequence[bytes],
    ) -> Running:
        """Start a user process; raises StartError."""
        capture = Capture(self._output, tail_bytes, secrets)
        try:
            child = start(argv, account=account, cwd=cwd, env=env, output_fd=capture.write_fd)
        except StartError:
            capture.close()
            raise
        finally:
            capture.started()
        self._reaper.watch(child)
        self._captures.append(capture)
        return Running(child, capture)

    def turn(self, deadline: Optional[float] = None) -> List[int]:
        """Wait for something to happen or the deadline; returns the signals to be handled."""
        self._wait(deadline)
        self._reaper.collect()
        return self._signals.take()

    def terminate_everything(self, grace_seconds: float) -> None:
        """End every process: TERM, then KILL for what is left after the grace."""
        deadline = time.monotonic() + grace_seconds
        for number in terminate_signals():
            signal_everything(number)
        if not self._wait_for_nobody(deadline):
            signal_everything(signal.SIGKILL)
            self._wait_for_nobody(time.monotonic() + _AFTER_KILL_SECONDS)
        self._pass_on_the_rest()

    def _wait(self, deadline: Optional[float]) -> None:
        readable = {capture.fd: capture for capture in self._captures}
        poll = select.poll()
        poll.register(self._signals.wake_fd, select.POLLIN)
        if self._output.accepts:
            for descriptor in readable:
                poll.register(descriptor, select.POLLIN)
        if self._output.has_pending:
            poll.register(self._output.fd, select.POLLOUT)

        events = poll.poll(None if deadline is None else _milliseconds_until(deadline))
        for descriptor, _ in events:
            if descriptor == self._signals.wake_fd:
                self._signals.drain()
            elif descriptor == self._output.fd:
                self._output.flush()
            else:
                readable[descriptor].read()
        self._captures = [capture for capture in self._captures if not capture.closed]

    def _wait_for_nobody(self, deadline: float) -> bool:
        while True:
            have_children = self._reaper.collect()
            if not have_children and not anything_left():
                return True
            now = time.monotonic()
            if now >= deadline:
                return False
            self._wait(min(deadline, now + _LOOK_SECONDS))

    def _pass_on_the_rest(self) -> None:
        deadline = time.monotonic() + _LAST_OUTPUT_SECONDS
        for capture in self._captures:
            if not capture.closed:
                capture.finish()
        while self._output.has_pending and time.monotonic() < deadline:
            poll = select.poll()
            poll.register(self._output.fd, select.POLLOUT)
            poll.poll(_milliseconds_until(deadline))
            self._output.flush()


def _milliseconds_until(deadline: float) -> int:
    # Rounded up: a wait that ends a little early would be repeated at once.
    return max(0, int((deadline - time.monotonic()) * 1000) + 1)
