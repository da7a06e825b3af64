"""One program that a run starts: its pipes or its terminal, how it ends, and what outlives it."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..observe.observers import Observers
from ..process.gateway_client import Watch
from ..process.memory import kills
from ..process.program import Account, Child, Exit, StartError, Stdio, start
from ..process.reaper import Reaper
from ..process.signals import name_of
from ..process.terminal import end_of_file, input_visibility, open_terminal, resize
from ..record.frames import Kind, Method, Stream
from ..record.recording import Recording
from .pipes import InputPipe, OutputPipe, Sink
from .run_start import environment_of_program
from .runspec import Program
from .stop import ignores_hangup, kill_all, members_of_session, signal_all

KILL_AGAIN_SECONDS = 0.1
LOST_SECONDS = 10.0
"""A process that not even KILL ends hangs in the kernel; the run does not wait for it for ever."""
_KILLED_STATUS = 128 + signal.SIGKILL
# How long something that outlives the leader may keep its output open, or its background work.
_AFTER_LEADER_SECONDS = 2.0


class Surroundings(NamedTuple):
    """What the leaders of one run have in common."""

    recording: Recording
    observers: Observers
    reaper: Reaper
    account: Account
    env: Dict[str, str]
    cwd: str
    input_policy: str


class Audience:
    """Who takes part in one program from outside; this one is nobody."""

    def sink(self, stream: int) -> Optional[Sink]:
        """Who is to be given a copy of a stream."""
        return None

    def consumed(self, count: int) -> None:
        """The program has taken so many bytes of its input."""

    def ended(self, exit: Dict[str, Any]) -> None:
        """The program has ended, and its output has been read."""


class Leader:
    """Starts the program; whether that failed is in `exit`.

    `number`: its process number in the record. `exit`: how it has ended, None while it runs.
    """

    def __init__(self, program: Program, around: Surroundings, audience: Audience) -> None:
        self.program = program
        self.number = 0
        self.exit: Optional[Dict[str, Any]] = None
        self.failure: Optional[str] = None
        """Why it could not be started."""
        self.input: Optional[InputPipe] = None
        self.abandon_at: Optional[float] = None
        """When, after its end, nothing more is read of it and its background is not waited for."""
        self.started_at = time.monotonic()
        self._kills = kills()
        self._around = around
        self._recording = around.recording
        self._audience = audience
        self._method = Method.PTY if program.terminal else Method.PIPE
        self._outputs: List[OutputPipe] = []
        self._child: Optional[Child] = None
        self._terminal = -1
        self._drained = False
        # When what was hung up on is killed; None again once nothing of it is left.
        self._kill_at: Optional[float] = None
        self._killed = False
        # When a program that was killed and has not ended is given up.
        self._lost_at: Optional[float] = None
        # When, after its end, is looked again whether anything that was hung up on is left.
        self._look_at = 0.0
        self._start()

    # What may be asked of it.

    @property
    def runs(self) -> bool:
        """Whether the program itself has not ended yet."""
        return self._child is not None and self._child.exit is None

    def signal(self, number: int, reason: str) -> None:
        """Signal its process group, and record it; nothing happens after its end."""
        if self.exit is not None:
            return
        self._record_signal(number, "group", reason)
        self.signal_group(number)

    def signal_group(self, number: int) -> None:
        """The same without a word in the record."""
        if self._child is not None and self.runs:
            self._child.signal_group(number)

    def hang_up(self, grace_seconds: float) -> None:
        """Its client is gone: HUP for its whole session, and KILL after the grace.

        What outlives it in the session is spared only if it ignores hangups.
        """
        if self.exit is not None or self._kill_at is not None or self._child is None:
            return
        self._kill_at = time.monotonic() + grace_seconds
        self._record_signal(signal.SIGHUP, "session", "client")
        members = members_of_session(self._child.pid)
        for number in (signal.SIGHUP, signal.SIGCONT):
            self.signal_group(number)
            # Not every shell passes it on to jobs, which have groups of their own.
            signal_all((pid for pid in members if not self._is_in_group(pid)), number)

    def was_killed(self, now: float) -> None:
        """It cannot but end; when it does not, it is given up."""
        self._lost_at = self._lost_at or now + LOST_SECONDS

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size; nothing happens without one."""
        if self._terminal < 0 or self.exit is not None:
            return
        resize(self._terminal, columns, rows)
        for output in self._outputs:
            output.flush()
        self._record_size(columns, rows)

    def give(self, data: bytes) -> None:
        """Hand it over in this turn, if the program and the record take it."""
        given = self.input
        if given is None:
            return
        waits = given.pending
        given.give(data)
        if not waits and not self._is_hung_up() and self._recording.accepts():
            given.write()

    def end_input(self) -> None:
        """What the client sends is at its end; in a terminal that is a key."""
        if self.input is None:
            return
        if self._terminal >= 0:
            self.input.give(end_of_file(self._terminal))
        else:
            self.input.end()

    # The loop.

    def watches(self, now: float, read: bool, write: bool) -> List[Watch]:
        """Descriptors to wait for, when its output may be read and its input written now."""
        found: List[Watch] = []
        for output in self._outputs:
            # Asked even when nothing is read: a moment that is past must not wake the loop again.
            if output.ready(now) and read:
                found.append((output.fd, select.POLLIN, output.handle))
        given = self.input
        if write and given is not None and given.pending and not self._is_hung_up():
            found.append((given.fd, select.POLLOUT, given.handle))
        return found

    def deadlines(self) -> List[Optional[float]]:
        """When `supervise` must be called (monotonic seconds), if nothing happens before."""
        due = [output.retry_at for output in self._outputs]
        if self.exit is None:
            return [*due, self._kill_at, self._lost_at]
        return [*due, self.abandon_at if self._kill_at is None else self._look_at]

    def supervise(self, now: float, accepts: bool, stop_reason: Optional[str]) -> None:
        """Do what is due. `accepts`: whether there is room in the record now."""
        self._outputs = [output for output in self._outputs if not output.closed]
        if self.exit is None and self._child is not None and self._child.exit is not None:
            self._ended(self._child.exit, accepts, stop_reason)
        if self.exit is not None:
            if not self._drained and accepts:
                self._drain()
            elif not self._drained:
                # What lies in the pipes was written by the run and has no room yet: it waits.
                self.abandon_at = now + _AFTER_LEADER_SECONDS
            if self._kill_at is not None and now >= self._look_at:
                self._clear_session(now, self._kill_at)
            return
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + KILL_AGAIN_SECONDS
            self._kill_session()
            self.was_killed(now)
        if self._lost_at is not None and now >= self._lost_at:
            self._record_exit(None, None, "lost")

    def is_over(self, now: float) -> bool:
        """Whether it has ended and nothing more is to be read of it."""
        if self.exit is None or self.abandon_at is None or self._kill_at is not None:
            return False
        return not self._outputs or now >= self.abandon_at

    def finish(self) -> None:
        """Close what is still open."""
        for output in self._outputs:
            output.close("abandoned")
        if self.input is not None:
            self.input.close("abandoned" if self.input.pending else "eof")
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1
        self._audience.ended(self.exit or {})

    # Its beginning.

    def _start(self) -> None:
        stdio, ours = self._open_stdio()
        terminal = os.ttyname(stdio.stdout) if stdio.terminal else None
        around = self._around
        try:
            child = start(
                self.program.argv,
                account=around.account,
                cwd=around.cwd,
                env=environment_of_program(around.env, self.program, terminal),
                stdio=stdio,
                dies_with_us=True,
            )
        except StartError as error:
            self.failure = str(error)
            _close(ours)
            self._record_start(0)
            self._record_exit(error.code, None, "startFailed")
        except OSError:
            _close(ours)
            raise
        else:
            self._child = child
            around.reaper.watch(child)
            self._record_start(child.pid)
            around.observers.leader_started(child.pid, self.number)
            self._connect(ours)
        finally:
            stdio.close()

    def _open_stdio(self) -> Tuple[Stdio, List[int]]:
        fds: List[int] = []
        size = self.program.terminal
        try:
            if size is not None:
                fds += open_terminal(size.columns, size.rows, self._around.account.uid)
                # One for each use: the end of one must not close the others.
                fds += [os.dup(fds[0]), os.dup(fds[0])]
            else:
                for _ in range(3 if self.program.has_input else 2):
                    fds += os.pipe()
        except OSError:
            _close(fds)
            raise
        if size is not None:
            terminal, theirs, shown, typed = fds
            return Stdio(theirs, theirs, theirs, terminal=True), [terminal, shown, typed]
        out_read, out_write, err_read, err_write = fds[:4]
        if not self.program.has_input:
            return Stdio(None, out_write, err_write), [out_read, err_read]
        in_read, in_write = fds[4:]
        return Stdio(in_read, out_write, err_write), [out_read, err_read, in_write]

    def _connect(self, ours: List[int]) -> None:
        stream, method, policy = self._recording.stream, self._method, self._around.input_policy
        audience = self._audience
        if self.program.terminal is not None:
            typed = stream(self.number, Stream.PTY_INPUT, method)
            shown = stream(self.number, Stream.PTY_OUTPUT, method)
            visible = input_visibility(ours[0], policy)
            self._terminal = ours[0]
            sink = audience.sink(Stream.STDOUT)
            self._outputs.append(OutputPipe(ours[1], shown, sink, lambda: self.runs))
            self.input = InputPipe(ours[2], typed, visible, audience.consumed)
            self._give_first()
            return
        if len(ours) > 2:
            given = stream(self.number, Stream.STDIN, method)
            self.input = InputPipe(ours[2], given, lambda: policy != "off", audience.consumed)
        for fd, number in zip(ours, (Stream.STDOUT, Stream.STDERR)):
            recorded = stream(self.number, number, method)
            self._outputs.append(OutputPipe(fd, recorded, audience.sink(number)))
        self._give_first()

    def _give_first(self) -> None:
        """Give it the input that it was started with, which is all unless more is to come."""
        if self.input is not None and self.program.stdin is not None:
            self.input.give(self.program.stdin)
            if not self.program.more_input:
                self.end_input()

    # Its end.

    def _ended(self, ended: Exit, accepts: bool, stop_reason: Optional[str]) -> None:
        # What it wrote comes before its exit, however slow the client is.
        if accepts:
            self._drain()
        reason = "exited" if ended.signal_number is None else "signaled"
        if stop_reason in ("timeout", "cancelled"):
            reason = str(stop_reason)
        elif ended.status == _KILLED_STATUS and not self._killed and kills() > self._kills:
            # A shell says the same of what it has waited for.
            reason = "outOfMemory"
        self._record_exit(ended.code, ended.signal_name, reason)

    def _drain(self) -> None:
        self._drained = True
        for output in self._outputs:
            output.read_what_is_there()
        self._outputs = [output for output in self._outputs if not output.closed]

    def _kill_session(self) -> None:
        if not self._killed:
            self._record_signal(signal.SIGKILL, "session", "client")
        self._killed = True
        if self._child is not None:
            self.signal_group(signal.SIGKILL)
            kill_all(members_of_session(self._child.pid))

    def _clear_session(self, now: float, kill_at: float) -> None:
        """Wait for what has outlived it and was hung up on too, and end it after the grace."""
        self._look_at = now + KILL_AGAIN_SECONDS
        members = members_of_session(self._child.pid) if self._child is not None else ()
        left = [pid for pid in members if not ignores_hangup(pid)]
        if not left or now >= kill_at + LOST_SECONDS:
            self._kill_at = None
        elif now >= kill_at:
            if not self._killed:
                self._record_signal(signal.SIGKILL, "session", "client")
            self._killed = True
            signal_all(left, signal.SIGKILL)

    def _is_hung_up(self) -> bool:
        """Whether nobody had the terminal open a moment ago: what is typed now would be lost."""
        return any(output.retry_at is not None for output in self._outputs)

    def _is_in_group(self, pid: int) -> bool:
        try:
            return self._child is not None and os.getpgid(pid) == self._child.pid
        except OSError:
            return True

    # What the record says.

    def _record_start(self, pid: int) -> None:
        program = self.program
        streams = ["pty"] if program.terminal else ["stdout", "stderr"]
        asked = {"channel": program.channel, "kind": program.kind} if program.kind else None
        self.number = self._recording.process_started(
            pid=pid,
            argv=program.argv,
            cwd=self._around.cwd,
            leader=True,
            streams=[] if self.failure else streams,
            method=self._method,
            start_failed=self.failure,
            asked=asked,
        )
        if program.terminal and not self.failure:
            self._record_size(program.terminal.columns, program.terminal.rows)

    def _record_size(self, columns: int, rows: int) -> None:
        self._recording.event(
            Kind.TERMINAL_RESIZED,
            {"columns": columns, "rows": rows},
            process=self.number,
            method=Method.PTY,
        )

    def _record_exit(self, code: Optional[int], signal_name: Optional[str], reason: str) -> None:
        self.exit = {"code": code, "signal": signal_name, "reason": reason}
        now = time.monotonic()
        self.abandon_at = now + _AFTER_LEADER_SECONDS
        self._recording.process_exited(
            self.number,
            code=code,
            signal=signal_name,
            reason=reason,
            duration_us=int((now - self.started_at) * 1e6),
            method=self._method,
        )

    def _record_signal(self, number: int, target: str, reason: str) -> None:
        meta = {"signal": name_of(number), "target": target, "reason": reason}
        self._recording.event(Kind.SIGNAL_SENT, meta, process=self.number)


def _close(fds: List[int]) -> None:
    for fd in fds:
        os.close(fd)
