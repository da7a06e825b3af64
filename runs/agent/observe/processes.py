"""Which processes belong to a run, from polling `/proc`.

A process belongs to it when its parent, session or process group does, or when its environment
carries the run's id. It is known by pid and start time together, as pids are used again.
"""

from __future__ import annotations

import os
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ..record.frames import Confidence, Method
from ..record.recording import Recording

POLL_SECONDS = 0.25
MOST_RECORDED = 65536
_IDLE_SECONDS = 1.0
# The same while the kernel says that no process has been started since the look before.
_QUIET_SECONDS = 5.0
_NOTHING_RUNS_SECONDS = 2.0
_FIRST_LOOK_SECONDS = 0.02
_SHARE = 0.05
# A key waits for no longer than this.
_CALL_SECONDS = 0.0015
_LAST_LOOK_SECONDS = 1.0
# How long only the run's own processes are looked at, while the kernel says that there are no new
# ones.
_TRUST_SECONDS = 30.0
# A pid that was used again between two polls looks like the stranger it was before; so some of
# them are looked at again each time.
_STRANGERS_PER_POLL = 64
_OTHER_RUN_SECONDS = 5.0
_RUN_ID = b"SVC_RUN_ID="
_TICKS = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """What `/proc/<pid>/stat` tells. `start`: clock ticks since the machine started."""

    state: str
    parent: int
    group: int
    session: int
    start: int


class Member(NamedTuple):
    """A process of the run. `number`: its number in the record, 0 when it has none.

    `session`: that in which it was seen first.
    """

    number: int
    start: int
    leader: bool
    since: float
    session: int


class Processes:
    """The processes of one run. Every call is short; the rest is done by the next one."""

    def __init__(self, recording: Recording, run_id: str, recorded: bool = True) -> None:
        """`recorded`: whether there are events; otherwise the members are only known."""
        self._is_recorded = recorded
        self.full = False
        self._recording = recording
        self._mark = _RUN_ID + os.fsencode(run_id)
        self._members: Dict[int, Member] = {}
        self._sessions: Set[int] = set()
        self._strangers: Dict[int, int] = {}
        self._checked: List[int] = []
        self._poll: Optional[Iterator[None]] = None
        self._is_outdated = False
        self._other_runs: Dict[str, float] = {}
        self._recorded = 0
        self._seconds = POLL_SECONDS
        self._interval = POLL_SECONDS
        self.due: Optional[float] = None
        self._tells_last_pid = False
        self._last_pid = -1
        self._is_quiet = False
        self._looked_at = 0.0

    @staticmethod
    def unavailable() -> Optional[str]:
        """Why processes cannot be seen, if they cannot."""
        if _stat_of(1) is None:
            return "/proc cannot be read"
        return None

    def prepare(self) -> None:
        """What runs now, before the leader, is not the run's; whose it is must still be known."""
        for pid in _pids():
            self._strangers.setdefault(pid, -1)
        self._checked = list(self._strangers)

    def leader_started(self, pid: int, number: int) -> None:
        """A process that the recorder started itself, and records itself."""
        found = _stat_of(pid)
        self._strangers.pop(pid, None)
        start = found.start if found else 0
        self._members[pid] = Member(number, start, True, time.monotonic(), pid)
        self._sessions.add(pid)
        # A look that is under way does not see what it starts.
        self._is_outdated = True
        # Where the kernel hides it, gVisor's say, the number is older than this process.
        self._tells_last_pid = _last_pid() >= pid
        # What a quick program has to say is passed on first.
        self.due = time.monotonic() + _FIRST_LOOK_SECONDS

    def pids(self) -> List[int]:
        """The living processes of the run, as far as they are known now."""
        alive = []
        for pid, member in self._members.items():
            found = _stat_of(pid)
            if found is not None and found.start == member.start and found.state != "Z":
                alive.append(pid)
        return alive

    def number_of(self, pid: int) -> int:
        """The record's number of a process of the run; 0 when it has none."""
        member = self._members.get(pid)
        return member.number if member is not None else 0

    def other_runs(self) -> List[str]:
        """The ids of other runs that had processes a moment ago."""
        oldest = time.monotonic() - _OTHER_RUN_SECONDS
        return sorted(run for run, seen in self._other_runs.items() if seen >= oldest)

    def tick(self) -> None:
        """Poll when it is time."""
        started = time.monotonic()
        if self.due is None or started < self.due:
            return
        if self._poll is None:
            self._poll = self._polled_if_news(started)
            self._is_outdated = False
        if _drive(self._poll, started + _CALL_SECONDS):
            self._poll = None
        cost = time.monotonic() - started
        # Never more than a share of a core, however many processes there are.
        seconds = self._seconds if self._members else _NOTHING_RUNS_SECONDS
        if self._is_quiet and self._seconds == _IDLE_SECONDS:
            seconds = _QUIET_SECONDS
        self._interval = max(cost / _SHARE, 0.0 if self._poll or self._is_outdated else seconds)
        self.due = time.monotonic() + self._interval

    def pace(self, idle: bool) -> None:
        """Poll less often while nothing happens, and soon when something does."""
        seconds = _IDLE_SECONDS if idle else POLL_SECONDS
        if seconds < self._seconds and self.due is not None:
            self.due = min(self.due, time.monotonic() + seconds)
        self._seconds = seconds

    def look_by(self, moment: float) -> None:
        """Poll then at the latest, although nothing has happened for long."""
        if self._seconds == _IDLE_SECONDS and self.due is not None:
            self.due = min(self.due, moment)

    def finish(self) -> None:
        """Poll a last time; whatever is gone is recorded as ended."""
        _drive(self._polled(), time.monotonic() + _LAST_LOOK_SECONDS)
        self.due = None

    def _polled_if_news(self, now: float) -> Iterator[None]:
        """One look, only at the run's own processes while no new one can be there."""
        last = _last_pid() if self._tells_last_pid else -1
        self._is_quiet = last >= 0 and last == self._last_pid
        if self._is_quiet and now - self._looked_at < _TRUST_SECONDS:
            return self._polled_members()
        self._last_pid, self._looked_at = last, now
        return self._polled()

    def _polled_members(self) -> Iterator[None]:
        for pid, member in list(self._members.items()):
            self._look_whether_ended(pid, member)
            yield

    def _look_whether_ended(self, pid: int, member: Member) -> None:
        found = _stat_of(pid)
        gone = found is None or found.state == "Z" or found.start != member.start
        if gone and self._members.get(pid) is member:
            self._ended(pid, member)

    def _polled(self) -> Iterator[None]:
        """One look at everything, in steps: what begins meanwhile is left for the next one."""
        # What is in them all the same is found by this look.
        left = self._empty_sessions()
        present = set(_pids())
        members = list(self._members.items())
        for pid in [pid for pid in self._strangers if pid not in present]:
            del self._strangers[pid]
        for pid, member in members:
            self._look_whether_ended(pid, member)
            yield
        if not self._checked:
            self._checked = list(self._strangers)
        look_again = self._checked[:_STRANGERS_PER_POLL]
        del self._checked[:_STRANGERS_PER_POLL]
        for pid in look_again:
            self._look_again(pid)
            yield
        known = self._strangers.keys() | self._members.keys() | {os.getpid()}
        for pid in sorted(present - known):
            self._place(pid, set())
            yield
        if present:
            # The kernel may give their numbers to strangers.
            self._sessions -= left & self._empty_sessions()

    def _empty_sessions(self) -> Set[int]:
        used = {member.session for member in self._members.values()}
        return self._sessions - used - self._members.keys()

    def _look_again(self, pid: int) -> None:
        start = self._strangers.get(pid)
        if start is None:
            return
        found = _stat_of(pid)
        if start == -1 and found is not None:
            self._strangers[pid] = found.start
            self._note_other_run(pid)
        elif found is None or found.start != start:
            del self._strangers[pid]
        else:
            self._note_other_run(pid)

    def _place(self, pid: int, asking: Set[int]) -> bool:
        """Decide whether a new process is the run's; its parents are decided first."""
        if pid in self._members:
            return True
        if pid in self._strangers or pid in asking or pid in (0, os.getpid()):
            return False
        found = _stat_of(pid)
        if found is None or found.state == "Z":
            return False
        asking.add(pid)
        belongs = found.session in self._sessions or found.group in self._sessions
        if not belongs and len(asking) < 64:
            belongs = self._place(found.parent, asking)
        if not belongs:
            belongs = self._note_other_run(pid)
        if belongs:
            self._started(pid, found)
        else:
            self._strangers[pid] = found.start
        return belongs

    def _note_other_run(self, pid: int) -> bool:
        """Whether the environment of a process names this run; notes when it names another."""
        for line in _read(pid, "environ").split(b"\0"):
            if line == self._mark:
                return True
            if line.startswith(_RUN_ID):
                self._other_runs[os.fsdecode(line[len(_RUN_ID) :])] = time.monotonic()
        return False

    def _started(self, pid: int, found: Stat) -> None:
        if found.session == pid or found.session in self._members:
            self._sessions.add(found.session)
        now = time.monotonic()
        if not self._is_recorded or self._recorded >= MOST_RECORDED:
            self.full = self._is_recorded
            self._members[pid] = Member(0, found.start, False, now, found.session)
            return
        argv, cwd, name = _described(pid)
        parent = self._members.get(found.parent)
        number = self._recording.process_started(
            pid=pid,
            argv=argv,
            cwd=cwd,
            leader=False,
            name=name,
            parent=parent.number if parent is not None and parent.number else None,
            method=Method.POLL,
            confidence=Confidence.INFERRED,
        )
        self._recorded += 1
        self._members[pid] = Member(number, found.start, False, now, found.session)

    def _ended(self, pid: int, member: Member) -> None:
        del self._members[pid]
        if member.leader or not member.number:
            return
        self._recording.process_exited(
            member.number,
            code=None,
            signal=None,
            reason="exited",
            duration_us=_age_us(member),
            method=Method.POLL,
            confidence=Confidence.INFERRED,
        )


def _drive(poll: Iterator[None], until: float) -> bool:
    """Go on with it until then; whether it is done."""
    return all(time.monotonic() < until for _ in poll)


def _age_us(member: Member) -> int:
    by_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) - member.start / _TICKS
    # Where the machine's start is hidden, what was seen is the best there is.
    least = time.monotonic() - member.since
    return int((by_ticks if by_ticks >= least else least) * 1e6)


def _pids() -> List[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _last_pid() -> int:
    """The last pid that the kernel gave out in our namespace; -1 when that is not to be had."""
    try:
        fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        return int(os.read(fd, 256).split()[-1])
    except (OSError, ValueError, IndexError):
        return -1
    finally:
        os.close(fd)


def _stat_of(pid: int) -> Optional[Stat]:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    parent, group, session = (int(field) for field in fields[1:4])
    return Stat(fields[0].decode(), parent, group, session, int(fields[19]))


def _described(pid: int) -> Tuple[List[bytes], bytes, Optional[str]]:
    argv = _read(pid, "cmdline").split(b"\0")
    if argv[-1] == b"":
        argv.pop()
    try:
        cwd = os.readlink(b"/proc/%d/cwd" % pid)
    except OSError:
        cwd = b""
    name = _read(pid, "comm").strip().decode("utf-8", "replace")
    return argv, cwd, name or None


def _read(pid: int, name: str) -> bytes:
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 262144)
    except OSError:
        return b""
    finally:
        os.close(fd)
