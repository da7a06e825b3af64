"""One recorded run: from its record's first event, through the loop that serves it, to its seal.

The same loop serves one-shot and interactive runs. A one-shot run has one leader, a session has as
many as its `Client` asks for. One thread, no polling: it waits for pipes, signals, children,
requests and deadlines at once.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Callable, Dict, List, Optional

from ..config import Config
from ..credentials.child_environment import account_of
from ..credentials.values import live_values
from ..masking.masker import Masker, secret_values
from ..observe.observers import Observers
from ..process.gateway_client import Client, Watch
from ..process.program import Account
from ..process.reaper import Reaper, adopt_orphans
from ..process.signals import STOPPING, SignalQueue, name_of
from ..record.allocation import keep_buffers
from ..record.frames import Kind
from ..record.recording import Recording
from ..record.spool import SpoolWriter
from ..record.unrecorded import Unrecorded
from .leader import KILL_AGAIN_SECONDS, LOST_SECONDS, Audience, Leader, Surroundings
from .run_input import RunInput
from .run_start import environment_of_run, record_started
from .runspec import Program, RunSpec
from .stop import ControlSocket, GivenInput, StopRequest, kill_all, members_of, signal_all

_ENDS_ALL = ("timeout", "cancelled", "stop")


class Execution:
    """Owns a run's leaders and its record. Without a `writer` nothing is recorded."""

    def __init__(
        self, spec: RunSpec, config: Config, writer: Optional[SpoolWriter], runs_root: str
    ) -> None:
        self.spec = spec
        self.client = Client()
        self._config = config
        self._account = account_of(config)
        env = environment_of_run(spec, config)
        secrets = [*config.secrets, *spec.secrets, *secret_values(env)]
        record = spec.record
        self.recording: Recording = Unrecorded()
        self._control: Optional[ControlSocket] = None
        if writer is not None and record is not None:
            masker = Masker(secrets, live_values(config, self._account))
            self.recording = Recording(writer, policy=record.policy, masker=masker)
            self._control = ControlSocket(os.path.join(runs_root, spec.run_id))
        self._observers = Observers(
            self.recording,
            repository=config.working_directory,
            account=self._account,
            processes=record is not None and record.processes,
            files=record is not None and record.files,
            network=record is not None and record.network,
            patch_bytes=record.patch_bytes if record is not None else 0,
            max_files=record.max_files if record is not None else 0,
            runs_root=runs_root,
            run_id=spec.run_id,
            rests=spec.mode == "interactive",
        )
        adopt_orphans()
        keep_buffers()
        self._signals = SignalQueue()
        self._reaper = Reaper()
        self._around = Surroundings(
            recording=self.recording,
            observers=self._observers,
            reaper=self._reaper,
            account=self._account,
            env=env,
            cwd=os.path.normpath(os.path.join(config.working_directory, spec.cwd or ".")),
            input_policy=record.input if record is not None else "off",
        )
        self._input = RunInput(spec.program.stdin if spec.program is not None else None)
        self._leaders: List[Leader] = []
        self._latest: Optional[Leader] = None
        self._have_children = False
        self._may_have_ended = True
        self._time_limit: Optional[float] = None
        self._stop_reason: Optional[str] = None
        self._kill_at: Optional[float] = None
        self._killed = False
        self._seal_reason = "ended"

    def begin(self) -> None:
        """Start the record, and with it a one-shot run's program, or the failure to start it.

        The spool itself is durable already; what is in it soon is, and of a session when this
        returns. A session must `observe` before its first program.
        """
        if self.spec.record is not None:
            meta = record_started(
                self.spec, self._config, self.recording, self._account, self._observers.coverage()
            )
            self.recording.event(Kind.RECORD_STARTED, meta)
        if self.spec.program is not None:
            self.observe()
            leader = self.start_leader(self.spec.program, Audience())
            if leader.exit is None and self.spec.time_seconds is not None:
                self._time_limit = leader.started_at + self.spec.time_seconds
            # Whoever waits for a short program would wait for the disk first.
            self.recording.flush()
        else:
            self.recording.sync()

    def observe(self) -> None:
        """Take the baseline, and begin to watch."""
        self._observers.before_start()

    @property
    def account(self) -> Account:
        """Who the programs run as."""
        return self._account

    @property
    def env(self) -> Dict[str, str]:
        """What every program of the run sees."""
        return self._around.env

    @property
    def is_ending(self) -> bool:
        """Whether everything of the run is being ended, so that nothing may be started."""
        return self._stop_reason in _ENDS_ALL

    def start_leader(self, program: Program, audience: Audience) -> Leader:
        """Start one more program; that it could not be started is recorded too.

        Raises OSError when there are no descriptors left for it.
        """
        self._latest = Leader(program, self._around, audience)
        self._may_have_ended = True
        self._leaders.append(self._latest)
        return self._latest

    def finish(self) -> None:
        """Serve the run to its end, and seal its record."""
        try:
            self._finish()
        except BaseException:
            # Nothing goes on that is not recorded.
            kill_all(members_of(self.spec.run_id))
            raise

    def _finish(self) -> None:
        while not self._is_over():
            self._turn(self._deadline())
            self._supervise()
        if self.spec.mode == "one-shot" or self.is_ending:
            self._end_survivors()
        while self.recording.waiting():
            self._turn(self._watching_deadline())
        self._observers.finish()
        if self._control is not None:
            self._control.close()
        # The exit of a run is that of the program which was started last.
        exit = self._latest.exit if self._latest is not None else None
        self.recording.seal(self._seal_reason, exit)

    def hang_up(self) -> None:
        """The client is gone: HUP for each leader's group, after the grace KILL for its session."""
        if self._stop_reason is not None:
            return
        if self._runs():
            self._stop_reason = "client"
            self._seal_reason = "stopped"
        for leader in self._leaders:
            leader.hang_up(self.spec.grace_seconds)

    def request_stop(self, reason: str, grace_seconds: Optional[float] = None) -> None:
        """End everything of the run: TERM now, KILL after the grace. `reason` is recorded."""
        grace = self.spec.grace_seconds if grace_seconds is None else grace_seconds
        kill_at = time.monotonic() + grace
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        if self.is_ending:
            return
        if self._anything_runs() or not self.client.is_over():
            self._stop_reason = reason
            self._seal_reason = "runtime-ended" if reason == "stop" else "stopped"
        self._record_signal(signal.SIGTERM, reason)
        self._signal_everything(signal.SIGTERM)
        self._signal_everything(signal.SIGCONT)
        self.client.stop()

    # The loop.

    def _deadline(self) -> Optional[float]:
        due = [self._watching_deadline()]
        for leader in self._leaders:
            due += leader.deadlines()
        if self.is_ending:
            due.append(self._kill_at)
        if self._anything_runs():
            due.append(self._time_limit)
        return _earliest(due)

    def _watching_deadline(self) -> Optional[float]:
        due = [self.recording.deadline(), self._observers.deadline(), self.client.deadline()]
        return _earliest(due)

    def _runs(self) -> bool:
        return any(leader.exit is None for leader in self._leaders)

    def _anything_runs(self) -> bool:
        """Whether a leader runs, or something that one left behind whose output is still read."""
        return self._runs() or bool(self._leaders and self._have_children)

    def _turn(self, deadline: Optional[float]) -> None:
        """Wait for something to happen or the deadline, and serve what has."""
        self.client.tick()
        accepts = self.recording.accepts()
        poll = select.poll()
        handlers: Dict[int, Callable[[int], None]] = {}
        for fd, events, handler in self._watches(accepts):
            poll.register(fd, events)
            handlers[fd] = handler
        # Whoever was closed by a handler before does nothing, even if its number was given again.
        for fd, events in poll.poll(None if deadline is None else _milliseconds(deadline)):
            handlers[fd](events)
        self.client.tick()
        self.recording.tick()
        self._observers.tick()
        if self._may_have_ended:
            self._may_have_ended = False
            self._have_children = self._reaper.collect()

    def _watches(self, accepts: bool) -> List[Watch]:
        watches: List[Watch] = [(self._signals.wake_fd, select.POLLIN, self._wake)]
        if self._control is not None:
            watches.append((self._control.fd, select.POLLIN, self._take_request))
        now = time.monotonic()
        may_read = self.client.accepts()
        for leader in self._leaders:
            # What a program has left behind at its end is read, however slow its client is.
            read = accepts and (may_read or leader.exit is not None)
            watches += leader.watches(now, read, accepts)
        watches += [(fd, select.POLLIN, self._observe(fd)) for fd in self._observers.fds()]
        return watches + self.client.watches(accepts)

    def _wake(self, events: int) -> None:
        self._signals.drain()
        # It may have been SIGCHLD; without it none of our children has ended.
        self._may_have_ended = True

    def _observe(self, fd: int) -> Callable[[int], None]:
        return lambda events: self._observers.readable(fd)

    def _take_request(self, events: int) -> None:
        request = self._control.take() if self._control is not None else None
        if isinstance(request, GivenInput):
            self._input.take(request, self._latest if self.spec.program is not None else None)
        elif request is not None:
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
        if self._time_limit is not None and now >= self._time_limit and self._anything_runs():
            self._time_limit = None
            self.request_stop("timeout")
        accepts = self.recording.accepts()
        for leader in self._leaders:
            leader.supervise(now, accepts, self._stop_reason)
        if self._kill_at is not None and now >= self._kill_at and self.is_ending:
            self._kill(self._stop_reason or "stop")
            self._kill_at = now + KILL_AGAIN_SECONDS
            for leader in self._leaders:
                leader.was_killed(now)
        for leader in [leader for leader in self._leaders if self._is_finished(leader)]:
            self._leaders.remove(leader)
            leader.finish()

    def _is_finished(self, leader: Leader) -> bool:
        now = time.monotonic()
        if not leader.is_over(now):
            return False
        # What a one-shot run has left in the background has as long as what keeps its output open.
        waits = self.spec.mode == "one-shot" and self._have_children
        return not waits or now >= (leader.abandon_at or now)

    def _is_over(self) -> bool:
        return not self._leaders and (self.is_ending or self.client.is_over())

    def _end_survivors(self) -> None:
        """Whatever a one-shot run leaves behind would go on unrecorded."""
        self._have_children = self._reaper.collect()
        left = members_of(self.spec.run_id, self._observers.pids())
        if not left:
            return
        self._record_signal(signal.SIGTERM, "stop")
        self._signal_everything(signal.SIGTERM)
        self._signal_everything(signal.SIGCONT)
        kill_at = time.monotonic() + self.spec.grace_seconds
        if self._kill_at is not None:
            kill_at = min(kill_at, self._kill_at)
        lost_at = kill_at + LOST_SECONDS
        while members_of(self.spec.run_id, self._observers.pids()):
            now = time.monotonic()
            if now >= lost_at:
                return
            if now >= kill_at:
                self._kill("stop")
            # Not all of them are our children, whose end would wake us.
            self._turn(now + KILL_AGAIN_SECONDS / 2)

    def _kill(self, reason: str) -> None:
        if not self._killed:
            self._record_signal(signal.SIGKILL, reason)
        self._killed = True
        self._signal_everything(signal.SIGKILL)

    def _record_signal(self, number: int, reason: str) -> None:
        meta = {"signal": name_of(number), "target": "all", "reason": reason}
        process = self._latest.number if self._latest is not None else 0
        self.recording.event(Kind.SIGNAL_SENT, meta, process=process)

    def _signal_everything(self, number: int) -> None:
        for leader in self._leaders:
            leader.signal_group(number)
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
