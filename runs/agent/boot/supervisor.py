"""The loop of PID 1: waits for signals, children, output and deadlines at once; never polls.

Everything runs in one thread. The phases of a boot are plain functions that call `turn` until what
they wait for has happened.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Dict, List, Optional, Sequence

from ..execution.output import Capture, ContainerOutput
from ..process.program import Account, Child, StartError, Stdio, start
from ..process.reaper import (
    Reaper,
    adopt_orphans,
    anything_left,
    signal_everything,
    terminate_signals,
    wait_for_readers,
)
from ..process.signals import SignalQueue, name_of
from ..record.tail import Tail
from .boot_record import BootRecord, RecordedProcess, ending_of
from .callers import Callers

# Processes that entered the container from outside (`docker exec`) are not our children: their end
# sends no signal, so a shutdown looks for them at this interval.
_LOOK_SECONDS = 0.05
_AFTER_KILL_SECONDS = 2.0
_LAST_OUTPUT_SECONDS = 1.0


class Running:
    """A started process, its output, and its place in the record."""

    def __init__(
        self, child: Child, recorded: RecordedProcess, captures: Sequence[Capture], tail: Tail
    ) -> None:
        self.child = child
        self.recorded = recorded
        self.timed_out = False
        self.tail = ""
        """The end of what it wrote, once it has ended."""
        self._captures = captures
        self._tail = tail

    def finish(self) -> None:
        """After the leader's exit: take what it has written, and keep the tail of that only."""
        for capture in self._captures:
            capture.drain()
            capture.forget_tail()
        self.tail = self._tail.text()


class Supervisor:
    """Owns all children, their pipes, the container's stdout and the arriving signals.

    `record` is set before the first process starts; `callers` where the control plane may call.
    `shows_masked`: the container's stdout gets
    what the record gets, without secrets; otherwise it gets every byte as it comes.
    """

    def __init__(self, stdout_fd: int) -> None:
        adopt_orphans()
        self.record: Optional[BootRecord] = None
        self.shows_masked = False
        self.callers: Optional[Callers] = None
        self._signals = SignalQueue()
        self._reaper = Reaper()
        self._output = ContainerOutput(stdout_fd)
        self._captures: List[Capture] = []
        self._running: List[Running] = []

    def start(
        self,
        argv: Sequence[str],
        *,
        name: str,
        account: Account,
        cwd: str,
        env: Dict[str, str],
        tail: Tail,
    ) -> Running:
        """Start a user process, the end of whose output goes into `tail`; raises StartError."""
        record = self.record
        if record is None:
            raise RuntimeError("nothing is started unrecorded")
        pipes = [os.pipe(), os.pipe()]
        try:
            stdio = Stdio(None, pipes[0][1], pipes[1][1])
            child = start(argv, account=account, cwd=cwd, env=env, stdio=stdio)
        except StartError as error:
            for reading, _ in pipes:
                os.close(reading)
            record.could_not_start(name, argv, cwd, reason=str(error), code=error.code)
            raise
        finally:
            # The process has these ends now; without ours its pipes can come to their end.
            for _, writing in pipes:
                os.close(writing)
        self._reaper.watch(child)
        recorded = record.started(child.pid, name, argv, cwd)
        captures = [
            Capture(reading, self._output, tail, stream, masked=self.shows_masked)
            for (reading, _), stream in zip(pipes, (recorded.stdout, recorded.stderr))
        ]
        self._captures += captures
        running = Running(child, recorded, captures, tail)
        self._running.append(running)
        return running

    def turn(self, deadline: Optional[float] = None) -> List[int]:
        """Wait for something to happen or the deadline; returns the signals to be handled."""
        self._wait(deadline)
        self._collect()
        return self._signals.take()

    def signal_group(self, running: Running, number: int, reason: str) -> None:
        """Signal a process's whole group, and record that."""
        if self.record is not None:
            self.record.signal_sent(
                name_of(number), target="group", reason=reason, process=running.recorded
            )
        running.child.signal_group(number)

    def wait_for_readers(self, runs_root: str, seconds: float) -> None:
        """Give those that pass records on the time to pass the ends on, but no more than this."""
        wait_for_readers(runs_root, seconds, self._readers)

    def _readers(self) -> Dict[int, str]:
        self._collect()
        return self.callers.readers() if self.callers is not None else {}

    def kill_everything(self) -> None:
        """KILL for every process that can be found."""
        if self.record is not None:
            self.record.signal_sent("SIGKILL", target="all", reason="stop")
        signal_everything(signal.SIGKILL)

    def terminate_everything(self, grace_seconds: float) -> None:
        """End every process: TERM, then KILL for what is left after the grace."""
        deadline = time.monotonic() + grace_seconds
        for child in self.callers.end_rest() if self.callers is not None else ():
            self._reaper.watch(child)
        if self.record is not None and anything_left():
            self.record.signal_sent("SIGTERM", target="all", reason="stop")
        for number in terminate_signals():
            signal_everything(number)
        if not self._wait_for_nobody(deadline):
            self.kill_everything()
            self._wait_for_nobody(time.monotonic() + _AFTER_KILL_SECONDS)
        self._pass_on_the_rest()

    def _collect(self) -> bool:
        """Reap, and record the ends of what we started; whether any children are left."""
        have_children = self._reaper.collect()
        if self.callers is not None:
            self.callers.finish()
        for running in self._running:
            if running.child.exit is not None and self.record is not None:
                running.finish()
                ending = ending_of(running.child.exit, timed_out=running.timed_out)
                self.record.ended(running.recorded, ending)
        self._running = [running for running in self._running if running.child.exit is None]
        return have_children

    def _wait(self, deadline: Optional[float]) -> None:
        self._captures = [capture for capture in self._captures if not capture.closed]
        readable = {capture.fd: capture for capture in self._captures}
        poll = select.poll()
        poll.register(self._signals.wake_fd, select.POLLIN)
        record = self.record
        if self._output.accepts and (record is None or record.accepts()):
            for descriptor in readable:
                poll.register(descriptor, select.POLLIN)
        if self._output.has_pending:
            poll.register(self._output.fd, select.POLLOUT)
        calling = self.callers.fds() if self.callers is not None else []
        for descriptor in calling:
            poll.register(descriptor, select.POLLIN)

        for due in (
            record.deadline() if record is not None else None,
            self.callers.deadline() if self.callers is not None else None,
        ):
            if due is not None and (deadline is None or due < deadline):
                deadline = due
        events = poll.poll(None if deadline is None else _milliseconds_until(deadline))
        for descriptor, _ in events:
            if descriptor == self._signals.wake_fd:
                self._signals.drain()
            elif descriptor == self._output.fd:
                self._output.flush()
            elif descriptor in readable:
                readable[descriptor].read()
            else:
                self._serve(descriptor)
        if self.callers is not None:
            for child in self.callers.tick():
                self._reaper.watch(child)
        if record is not None:
            record.tick()

    def _serve(self, descriptor: int) -> None:
        if self.callers is not None:
            child = self.callers.ready(descriptor, self._record_access)
            if child is not None:
                self._reaper.watch(child)

    def _record_access(self, told: Dict[str, Any]) -> bool:
        return self.record is not None and self.record.reported(told)

    def _wait_for_nobody(self, deadline: float) -> bool:
        while True:
            have_children = self._collect()
            # Readers that we serve are our children, and have to go on until the end.
            readers = self.callers.readers() if self.callers is not None else {}
            if (not have_children or readers) and not anything_left(readers):
                return True
            now = time.monotonic()
            if now >= deadline:
                return False
            self._wait(min(deadline, now + _LOOK_SECONDS))

    def _pass_on_the_rest(self) -> None:
        deadline = time.monotonic() + _LAST_OUTPUT_SECONDS
        for capture in self._captures:
            capture.drain()
            capture.abandon()
        while self._output.has_pending and time.monotonic() < deadline:
            poll = select.poll()
            poll.register(self._output.fd, select.POLLOUT)
            poll.poll(_milliseconds_until(deadline))
            self._output.flush()


def _milliseconds_until(deadline: float) -> int:
    # Rounded up: a wait that ends a little early would be repeated at once.
    return max(0, int((deadline - time.monotonic()) * 1000) + 1)
