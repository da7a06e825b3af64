"""The one place that waits for processes, and the one that ends them all.

As PID 1 of a container every orphan becomes ours; elsewhere (the tests) the same holds once we are
a child subreaper. Children that we started are known by their pid before the first wait, so no
exit status can be taken by the sweep for orphans.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Callable, Container, Dict, List

from .program import Child, Exit

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_SECONDS = 0.005
_RECORDERS = (b"agent exec", b"agent session")


def adopt_orphans() -> None:
    """Make orphaned descendants our children, as they are for a PID 1 by itself."""
    if os.getpid() == 1:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


class Reaper:
    """Waits for every child and remembers how those that we started have ended."""

    def __init__(self) -> None:
        self._started: Dict[int, Child] = {}

    def watch(self, child: Child) -> None:
        """Have `child.exit` filled in when it ends."""
        self._started[child.pid] = child

    def collect(self) -> bool:
        """Reap whatever has ended, known or orphan; whether any children are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            child = self._started.pop(pid, None)
            if child is not None:
                child.exit = Exit.from_wait_status(status)


def signal_everything(number: int) -> None:
    """Signal every process of the container, or, outside of one, every descendant."""
    if os.getpid() == 1:
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            pass
        return
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def terminate_recorders() -> None:
    """Ask the recorders of other runs in this container to end their runs and their records.

    Those that are forked from us have our command line, and a name of their own.
    """
    program = os.fsencode(os.path.abspath(sys.argv[0]))
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                command = file.read().split(b"\0")
            if program not in command:
                continue
            if b"exec" in command or b"session" in command or _served_name(entry) in _RECORDERS:
                os.kill(int(entry), signal.SIGTERM)
        except OSError:
            continue


def _served_name(entry: str) -> bytes:
    """What a process that was forked from us, or from such a one, calls itself."""
    with open(f"/proc/{entry}/comm", "rb") as file:
        return file.read().strip()


def anything_left(readers: Container[int] = ()) -> bool:
    """Whether the container, or the tree below us, has another process (unreaped ones included).

    Those that pass records on do not count: they have to go on until the end. `readers` are those
    of them that are forked from us.
    """
    if os.getpid() != 1:
        return bool(descendants(os.getpid()))
    try:
        os.kill(-1, 0)
    except ProcessLookupError:
        return False
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return any(pid not in readers and not _is_spared(pid) for pid in pids)


def wait_for_readers(
    runs_root: str, seconds: float, served: Callable[[], Dict[int, str]] = dict
) -> None:
    """Give those that pass records on the time to pass the ends on, but no more than this.

    A record whose end has arrived has no folder any more. `served` tells of the readers that are
    forked from us, and whose record each passes on.
    """
    deadline = time.monotonic() + seconds
    while os.getpid() == 1 and time.monotonic() < deadline:
        runs = [_read_by(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()]
        runs += served().values()
        if not any(run and os.path.isdir(os.path.join(runs_root, run)) for run in runs):
            return
        time.sleep(_LOOK_SECONDS)


def _is_spared(pid: int) -> bool:
    return pid == os.getpid() or bool(_read_by(pid))


def _read_by(pid: int) -> str:
    """The run whose record a process passes on: `agent tail RUN`, come from outside.

    Nothing of the workspace has a parent that is outside. Empty for any other process.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().split(b"\0")
        subcommand = command.index(os.fsencode(os.path.abspath(sys.argv[0]))) + 1
        if command[subcommand] != b"tail":
            return ""
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = file.read().rpartition(b")")[2].split()[1]
        return os.fsdecode(command[subcommand + 1]) if parent == b"0" else ""
    except (OSError, ValueError, IndexError):
        return ""


def terminate_signals() -> List[int]:
    """Asks all to end: HUP too, as interactive shells ignore TERM; CONT wakes the stopped."""
    return [signal.SIGTERM, signal.SIGHUP, signal.SIGCONT]


def descendants(ancestor: int) -> List[int]:
    """Every process below this one, zombies included."""
    children: Dict[int, List[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(int(entry))
    found: List[int] = []
    unvisited = [ancestor]
    while unvisited:
        below = children.get(unvisited.pop(), [])
        found += below
        unvisited += below
    return found
