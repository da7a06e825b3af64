"""Processes that outlive the command that started them: start detached, recognise, signal, wait.

A process is remembered by its pid, its start time and the boot of the machine, so that a pid used
again by somebody else is never taken for ours and never signalled. A zombie counts as dead: an
init that reaps slowly must not keep a service from being started again. But a process whose first
thread alone has ended looks like a zombie while its other threads still hold its ports and files:
it lives until the last thread is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_LOG_LIMIT = 10 * 1024 * 1024
_PROC = Path("/proc")
_ENDED = frozenset({"Z", "X", "x"})


@dataclass(frozen=True)
class ProcessRecord:
    """Which process it was: pid, start time in clock ticks since boot, and the boot's id."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessRecord | None:
        """The record of a live process, or None when there is none."""
        stat = _stat(pid)
        return None if stat is None else cls(pid=pid, started=stat.started, boot=_boot_id())

    @classmethod
    def load(cls, path: Path) -> ProcessRecord | None:
        """The record saved at `path`, or None when it is absent or unreadable."""
        try:
            fields = json.loads(path.read_text())
            return cls(
                pid=int(fields["pid"]), started=int(fields["started"]), boot=str(fields["boot"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, path: Path) -> None:
        """Write the record in one step, so that a reader never sees half of it."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)) + "\n")
        partial.replace(path)

    @property
    def alive(self) -> bool:
        """True while exactly this process runs; zombies and reused pids are not it."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        stat = _stat(self.pid)
        return stat is not None and stat.started == self.started and self.boot == _boot_id()

    def environ(self) -> dict[str, str]:
        """The environment that the process was started with; empty when it is not alive."""
        if not self.alive:
            return {}
        pairs = (os.fsdecode(entry).partition("=") for entry in _words(self.pid, "environ"))
        return {name: value for name, equals, value in pairs if equals}

    def signal(self, number: signal.Signals) -> None:
        """Signal the process if it still is the one recorded."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_session(self) -> None:
        """SIGKILL what is left of the session the process leads, itself included."""
        leader = _stat(self.pid)
        reused = leader is not None and leader.started != self.started
        # A number stays taken while a session of that number has members: when somebody else has
        # the pid now, nothing of ours is left.
        if reused or self.boot != _boot_id():
            return
        for pid in _all_pids():
            stat = _stat(pid)
            if stat is not None and stat.session == self.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def wait_gone(self, seconds: float) -> bool:
        """Wait until the process is dead; False when it still lives after `seconds`."""
        return wait_until(lambda: not self.alive, seconds)


@dataclass(frozen=True)
class _Stat:
    session: int
    started: int


def _stat(pid: int) -> _Stat | None:
    """The facts of a live process; None for no process, a zombie or a dead one."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    fields = _fields(text)
    if fields[0] in _ENDED and _live_thread(pid) is None:
        return None
    return _Stat(session=int(fields[3]), started=int(fields[19]))


def _fields(stat: str) -> list[str]:
    # The name in parentheses may contain anything, so the fields are counted from its end.
    return stat.rpartition(")")[2].split()


def _live_thread(pid: int) -> Path | None:
    """The directory in /proc of the first thread that has not ended; None when all have."""
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError, UnicodeDecodeError):
                if _fields((thread / "stat").read_text())[0] not in _ENDED:
                    return thread
    return None


def _words(pid: int, file: str) -> list[bytes]:
    """What `cmdline` or `environ` of a live process holds; empty when it cannot be read."""
    # Those of a thread that has ended are empty, even when the others go on.
    thread = _live_thread(pid)
    try:
        return [] if thread is None else (thread / file).read_bytes().split(b"\0")
    except OSError:
        return []


def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def running_commands(program: str) -> list[tuple[int, list[str]]]:
    """Pid and argv of every live process whose program has this base name."""
    found = []
    for pid in _all_pids():
        argv = [word.decode(errors="replace") for word in _words(pid, "cmdline")]
        if argv and Path(argv[0]).name == program:
            found.append((pid, [argument for argument in argv if argument]))
    return found


def wait_until(condition: Callable[[], bool], seconds: float, *, every: float = 0.02) -> bool:
    """Poll `condition` until it holds; False when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True


def spawn_detached(
    argv: Sequence[str], *, env: Mapping[str, str], directory: Path, log: Path
) -> ProcessRecord:
    """Start a program in a session of its own, with nothing of ours but its log.

    It inherits no descriptor (a pipe of the caller would otherwise never close), no ignored
    signal and no working directory, and survives the caller.
    """
    _rotate(log)
    command = ["/usr/bin/env", "--chdir", str(directory), *argv]
    actions: list[tuple[int, int, str, int, int] | tuple[int, int, int] | tuple[int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    actions += [(os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable_descriptors()]
    pid = os.posix_spawn(
        command[0],
        command,
        dict(env),
        file_actions=actions,
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT],
    )
    # A program that is gone already has no start time any more; its log says why.
    return ProcessRecord.of(pid) or ProcessRecord(pid=pid, started=-1, boot=_boot_id())


def _inheritable_descriptors() -> list[int]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            descriptor = int(entry.name)
            if descriptor > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
    return found


def _rotate(log: Path) -> None:
    """Keep one older log; a service that ran for months starts with a short file."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _LOG_LIMIT:
            log.replace(log.with_name(log.name + ".1"))


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, for an error message; empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
