"""One recorded run: from its record's first event, through the loop that serves it, to its seal.

The same loop serves one-shot and interactive runs; who sits at the other end of a session is a
`Client`. One thread, no polling: it waits for pipes, signals, children, requests and deadlines at
once.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Dict, List, Optional, Tuple

from .client import Client
from .config import Config
from .environment import account_of
from .frames import Kind, Method, Stream
from .masking import Masker, secret_values
from .observers import Observers
from .pipes import InputPipe, OutputPipe
from .process import Child, Exit, StartError, Stdio, start
from .reaper import Reaper, adopt_orphans
from .recording import Recording
from .run_start import environment_of_run, record_started
from .runspec import RunSpec
from .signals import STOPPING, SignalQueue, name_of
from .spool import SpoolWriter
from .stop import ControlSocket, StopRequest, kill_all, members_of, signal_all
from .terminal import input_visibility, open_terminal, resize

# How long something that outlives the leader may keep its output open, or its background work.
_AFTER_LEADER_SECONDS = 2.0
_KILL_AGAIN_SECONDS = 0.1
# A process that not even KILL ends hangs in the kernel; the run does not wait for it for ever.
_LOST_SECONDS = 10.0
_ENDS_ALL = ("timeout", "cancelled", "stop")


class Execution:
    """Owns a run's program, its pipes and its record."""

    def __init__(self, spec: RunSpec, config: Config, writer: SpoolWriter, runs_root: str) -> None:
        self.spec = spec
        self.client = Client()
        self.input: Optional[InputPipe] = None
        self._config = config
        self._account = account_of(config)
        self._env = environment_of_run(spec, config)
        secrets = [*config.secrets, *spec.secrets, *secret_values(self._env)]
        self.recording = Recording(writer, policy=spec.record.policy, masker=Masker(secrets))
        self._cwd = os.path.join(config.working_directory, spec.cwd or ".")
        self._cwd = os.path.normpath(self._cwd)
        self._observers = Observers(
            self.recording,
            repository=config.working_directory,
            account=self._account,
            processes=spec.record.processes,
            files=spec.record.files,
            network=spec.record.network,
            patch_bytes=spec.record.patch_bytes,
            max_files=spec.record.max_files,
            runs_root=runs_root,
            run_id=spec.run_id,
        )
        adopt_orphans()
        self._signals = SignalQueue()
        self._reaper = Reaper()
        self._control = ControlSocket(os.path.join(runs_root, spec.run_id))
        self._outputs: List[OutputPipe] = []
        self._child: Optional[Child] = None
        self._number = 0
        self._method = Method.PTY if spec.terminal else Method.PIPE
        self._terminal = -1
        self._started_at = 0.0
        self._have_children = False
        self._time_limit: Optional[float] = None
        self._exit: Optional[Dict[str, Any]] = None
        self._drained = False
        self._abandon_at: Optional[float] = None
        self._stop_reason: Optional[str] = None
        self._kill_at: Optional[float] = None
        self._killed = False
        self._lost_at: Optional[float] = None
        self._seal_reason = "ended"

    def begin(self) -> None:
        """Start the program. When this returns the record is durable; so is a failed start."""
        self._record_start()
        self._observers.before_start()
        stdio, ours = self._open_stdio()
        try:
            self._started_at = time.monotonic()
            child = start(
                self.spec.argv,
                account=self._account,
                cwd=self._cwd,
                env=self._env,
                stdio=stdio,
                dies_with_us=True,
            )
        except StartError as error:
            self._record_leader(0, start_failed=str(error))
            for fd in ours:
                os.close(fd)
            self._terminal = -1
            self._record_exit(error.code, None, "startFailed")
        else:
            self._child = child
            self._reaper.watch(child)
            self._record_leader(child.pid)
            self._observers.leader_started(child.pid, self._number)
            self._connect(ours)
            if self.spec.time_seconds is not None:
                self._time_limit = self._started_at + self.spec.time_seconds
        finally:
            stdio.close()
        self.recording.writer.sync()
        self.client.started()

    def finish(self) -> Dict[str, Any]:
        """Serve the run to its end, seal its record, and return its exit."""
        try:
            return self._finish()
        except BaseException:
            # Nothing goes on that is not recorded.
            kill_all(members_of(self.spec.run_id))
            raise

    def _finish(self) -> Dict[str, Any]:
        while not self._is_over():
            self._turn(self._deadline())
            self._supervise()
        ending = self._exit or {}
        for output in self._outputs:
            output.close("abandoned")
        if self.input is not None:
            self.input.close("abandoned" if self.input.pending else "eof")
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1
        self.client.ended(ending)
        if self.spec.mode == "one-shot" or self._stop_reason in _ENDS_ALL:
            self._end_survivors()
        while self.recording.waiting():
            self._turn(self._watching_deadline())
        self._observers.finish()
        self._control.close()
        self.recording.seal(self._seal_reason, ending)
        return ending

    def hang_up(self) -> None:
        """The client is gone: HUP for the leader's group, KILL after the grace."""
        self._end("client", None, signal.SIGHUP)

    def request_stop(self, reason: str, grace_seconds: Optional[float] = None) -> None:
        """End everything of the run: TERM now, KILL after the grace. `reason` is recorded."""
        self._end(reason, grace_seconds, signal.SIGTERM)

    def _end(self, reason: str, grace_seconds: Optional[float], first: int) -> None:
        grace = self.spec.grace_seconds if grace_seconds is None else grace_seconds
        kill_at = time.monotonic() + grace
        if self._kill_at is not None:
            kill_at = min(self._kill_at, kill_at)
        self._kill_at = kill_at
        if self._stop_reason in _ENDS_ALL or (self._stop_reason and reason == "client"):
            return
        if self._exit is None:
            self._stop_reason = reason
            self._seal_reason = "runtime-ended" if reason == "stop" else "stopped"
        self._signal_run(first, reason)

    def signal_leader(self, number: int) -> None:
        """Pass a client's signal on to the leader's process group."""
        if self._child is None or self._exit is not None:
            return
        self._record_signal(number, "group", "client")
        self._child.signal_group(number)

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size; nothing happens without one."""
        if self._terminal < 0 or self._exit is not None:
            return
        resize(self._terminal, columns, rows)
        for output in self._outputs:
            output.flush()
        self._record_size(columns, rows)

    @property
    def terminal(self) -> int:
        """Our side of the terminal; -1 when there is none."""
        return self._terminal

    # What the record says.

    def _record_start(self) -> None:
        meta = record_started(
            self.spec, self._config, self.recording, self._account, self._observers.coverage()
        )
        self.recording.event(Kind.RECORD_STARTED, meta)

    def _record_leader(self, pid: int, start_failed: Optional[str] = None) -> None:
        streams = ["pty"] if self.spec.terminal else ["stdout", "stderr"]
        self._number = self.recording.process_started(
            pid=pid,
            argv=self.spec.argv,
            cwd=self._cwd,
            leader=True,
            streams=[] if start_failed else streams,
            method=self._method,
            start_failed=start_failed,
        )
        if self.spec.terminal and not start_failed:
            self._record_size(self.spec.terminal.columns, self.spec.terminal.rows)

    def _record_size(self, columns: int, rows: int) -> None:
        self.recording.event(
            Kind.TERMINAL_RESIZED,
            {"columns": columns, "rows": rows},
            process=self._number,
            method=Method.PTY,
        )

    def _record_exit(self, code: Optional[int], signal_name: Optional[str], reason: str) -> None:
        self._exit = {"code": code, "signal": signal_name, "reason": reason}
        now = time.monotonic()
        self._abandon_at = now + _AFTER_LEADER_SECONDS
        self.recording.process_exited(
            self._number,
            code=code,
            signal=signal_name,
            reason=reason,
            duration_us=int((now - self._started_at) * 1e6),
            method=self._method,
        )

    def _record_signal(self, number: int, target: str, reason: str) -> None:
        meta = {"signal": name_of(number), "target": target, "reason": reason}
        self.recording.event(Kind.SIGNAL_SENT, meta, process=self._number)

    # The program's ends of its pipes, and ours.

    def _open_stdio(self) -> Tuple[Stdio, List[int]]:
        if self.spec.terminal is not None:
            ours, program = open_terminal(self.spec.terminal.columns, self.spec.terminal.rows)
            self._terminal = ours
            return Stdio(program, program, program, terminal=True), [ours]
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        if self.spec.stdin is None and self.spec.mode == "one-shot":
            return Stdio(None, out_write, err_write), [out_read, err_read]
        in_read, in_write = os.pipe()
        return Stdio(in_read, out_write, err_write), [out_read, err_read, in_write]

    def _connect(self, ours: List[int]) -> None:
        stream, method, policy = self.recording.stream, self._method, self.spec.record.input
        if self.spec.terminal is not None:
            typed = stream(self._number, Stream.PTY_INPUT, method)
            shown = stream(self._number, Stream.PTY_OUTPUT, method)
            visible = input_visibility(ours[0], policy)
            # A descriptor for each use: the end of one must not close the others.
            copy = self.client.output(Stream.STDOUT)
            output = OutputPipe(os.dup(ours[0]), shown, copy, self._leader_runs)
            self._outputs.append(output)
            self.input = InputPipe(os.dup(ours[0]), typed, visible)
            return
        if len(ours) > 2:
            given = stream(self._number, Stream.STDIN, method)
            self.input = InputPipe(ours[2], given, lambda: policy != "off")
        for fd, number in zip(ours, (Stream.STDOUT, Stream.STDERR)):
            recorded = stream(self._number, number, method)
            self._outputs.append(OutputPipe(fd, recorded, self.client.output(number)))
        if self.input is not None and self.spec.stdin is not None:
            self.input.give(self.spec.stdin)
            self.input.end()

    # The loop.

    def _deadline(self) -> Optional[float]:
        due = [self._watching_deadline(), self._abandon_at]
        due += [output.retry_at for output in self._outputs]
        if self._may_kill():
            due.append(self._kill_at)
        if self._exit is None:
            due += [self._time_limit, self._lost_at]
        return _earliest(due)

    def _watching_deadline(self) -> Optional[float]:
        return _earliest([self.recording.deadline(), self._observers.deadline()])

    def _leader_runs(self) -> bool:
        return self._child is not None and self._child.exit is None

    def _may_kill(self) -> bool:
        """An interactive run's background work survives its leader, unless all was to end."""
        return self._exit is None or self._stop_reason in _ENDS_ALL

    def _turn(self, deadline: Optional[float]) -> None:
        """Wait for something to happen or the deadline, and serve what has."""
        accepts = self.recording.accepts()
        poll = select.poll()
        poll.register(self._signals.wake_fd, select.POLLIN)
        poll.register(self._control.fd, select.POLLIN)
        readable: Dict[int, OutputPipe] = {}
        if accepts and self.client.accepts(at_the_end=self._exit is not None):
            now = time.monotonic()
            for output in self._outputs:
                if output.ready(now):
                    readable[output.fd] = output
                    poll.register(output.fd, select.POLLIN)
        writable = -1
        hung_up = any(output.retry_at is not None for output in self._outputs)
        if accepts and self.input is not None and self.input.pending and not hung_up:
            writable = self.input.fd
            poll.register(writable, select.POLLOUT)
        observed = self._observers.fds()
        for fd in observed:
            poll.register(fd, select.POLLIN)
        outside = self.client.poll_events(accepts)
        for fd, events in outside:
            poll.register(fd, events)

        outside_fds = {fd for fd, _ in outside}
        for fd, events in poll.poll(None if deadline is None else _milliseconds(deadline)):
            if fd in readable:
                readable[fd].read()
            elif fd == writable and self.input is not None:
                self.input.write()
            elif fd == self._signals.wake_fd:
                self._signals.drain()
            elif fd == self._control.fd:
                self._take_request()
            elif fd in outside_fds:
                self.client.handle(fd, events)
            else:
                self._observers.readable(fd)
        self.recording.tick()
        self._observers.tick()
        self._have_children = self._reaper.collect()
        self._outputs = [output for output in self._outputs if not output.closed]

    def _take_request(self) -> None:
        request = self._control.take()
        if request is not None:
            self._obey(request)

    def _obey(self, request: StopRequest) -> None:
        reason = request.reason if request.reason == "timeout" else "cancelled"
        self.request_stop(reason, request.grace_seconds)

    def _supervise(self) -> None:
        now = time.monotonic()
        for number in self._signals.take():
            if number in (*STOPPING, signal.SIGHUP):
                # The container is being stopped: what it allows must suffice for the seal too.
                grace = min(self.spec.grace_seconds, self._config.limits.grace_seconds / 2)
                self.request_stop("stop", grace)
        if self._exit is None and self._child is not None and self._child.exit is not None:
            self._leader_ended(self._child.exit)
        if self._exit is None and self._time_limit is not None and now >= self._time_limit:
            self._time_limit = None
            self.request_stop("timeout")
        if self._exit is not None and not self.recording.accepts():
            # What lies in the pipes was written by the run and has no room yet: it waits.
            self._abandon_at = now + _AFTER_LEADER_SECONDS
        elif self._exit is not None and not self._drained:
            self._drain()
        if self._kill_at is not None and now >= self._kill_at and self._may_kill():
            self._kill(self._stop_reason or "stop")
            self._kill_at = now + _KILL_AGAIN_SECONDS
            self._lost_at = self._lost_at or now + _LOST_SECONDS
        if self._exit is None and self._lost_at is not None and now >= self._lost_at:
            self._record_exit(None, None, "lost")

    def _leader_ended(self, ended: Exit) -> None:
        # What it wrote comes before its exit, however slow the client is.
        if self.recording.accepts():
            self._drain()
        reason = "exited" if ended.signal_number is None else "signaled"
        if self._stop_reason in ("timeout", "cancelled"):
            reason = self._stop_reason
        self._record_exit(ended.code, ended.signal_name, reason)

    def _drain(self) -> None:
        self._drained = True
        for output in self._outputs:
            output.read_what_is_there()
        self._outputs = [output for output in self._outputs if not output.closed]

    def _is_over(self) -> bool:
        if self._exit is None or self._abandon_at is None:
            return False
        if not self._outputs and (self.spec.mode != "one-shot" or not self._have_children):
            return True
        return time.monotonic() >= self._abandon_at

    def _end_survivors(self) -> None:
        """Whatever a one-shot run leaves behind would go on unrecorded."""
        self._have_children = self._reaper.collect()
        left = members_of(self.spec.run_id, self._observers.pids())
        if not left:
            return
        self._signal_run(signal.SIGTERM, "stop")
        kill_at = time.monotonic() + self.spec.grace_seconds
        if self._kill_at is not None:
            kill_at = min(kill_at, self._kill_at)
        lost_at = kill_at + _LOST_SECONDS
        while members_of(self.spec.run_id, self._observers.pids()):
            now = time.monotonic()
            if now >= lost_at:
                return
            if now >= kill_at:
                self._kill("stop")
            # Not all of them are our children, whose end would wake us.
            self._turn(now + _KILL_AGAIN_SECONDS / 2)

    def _kill(self, reason: str) -> None:
        if not self._killed:
            self._record_signal(signal.SIGKILL, "all", reason)
        self._killed = True
        self._signal_everything(signal.SIGKILL)

    def _signal_run(self, number: int, reason: str) -> None:
        if number == signal.SIGHUP:
            self._record_signal(number, "group", reason)
            if self._child is not None and self._leader_runs():
                self._child.signal_group(number)
            return
        self._record_signal(number, "all", reason)
        self._signal_everything(number)
        self._signal_everything(signal.SIGCONT)

    def _signal_everything(self, number: int) -> None:
        if self._child is not None and self._leader_runs():
            self._child.signal_group(number)
        members = members_of(self.spec.run_id, self._observers.pids())
        if number == signal.SIGKILL:
            kill_all(members)
        else:
            signal_all(members, number)


def _earliest(moments: List[Optional[float]]) -> Optional[float]:
    return min((moment for moment in moments if moment is not None), default=None)


def _milliseconds(deadline: float) -> int:
    # Rounded up: a wait that ends a little early would be repeated at once.
    return max(0, int((deadline - time.monotonic()) * 1000) + 1)
