"""Stopping a run from outside, and finding everything that belongs to it.

A run's supervisor listens on a datagram socket in the run's folder, which only root may enter. A
request that was sent has been accepted: the supervisor reads it as soon as its loop turns.
"""

from __future__ import annotations

import array
import json
import os
import re
import signal
import socket
import sys
from typing import Iterable, NamedTuple, Optional, Sequence, Set, Union

from ..process.reaper import descendants

SOCKET_NAME = "control.sock"
EXIT_UNKNOWN = 4

_MAX_REQUEST_BYTES = 4096
_REASON = re.compile(r"[a-zA-Z-]{1,64}")
_DEFAULT_REASON = "cancelled"


class StopRequest(NamedTuple):
    """Why a run shall end, and how long it may take to do so (None: as its spec says)."""

    reason: str
    grace_seconds: Optional[float]


class GivenInput(NamedTuple):
    """Input for a run's program: a file that holds it, and a pipe for the answer."""

    content: int
    answer: int

    def close(self) -> None:
        """Close both."""
        os.close(self.content)
        os.close(self.answer)


class ControlSocket:
    """The supervisor's end. Never blocks; what is no request is ignored."""

    def __init__(self, directory: str) -> None:
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._remove()
        before = os.umask(0o177)
        try:
            self._socket.bind(_address(self._directory))
        finally:
            os.umask(before)
        self.fd = self._socket.fileno()

    def take(self) -> Union[StopRequest, GivenInput, None]:
        """The next request, if there is one."""
        fds = array.array("i")
        room = socket.CMSG_SPACE(2 * fds.itemsize)
        try:
            content, ancillary, _, _ = self._socket.recvmsg(
                _MAX_REQUEST_BYTES, room, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if len(fds) == 2:
            return GivenInput(fds[0], fds[1])
        for fd in fds:
            os.close(fd)
        return _parse(content)

    def close(self) -> None:
        """Accept no more requests."""
        self._remove()
        self._socket.close()
        os.close(self._directory)

    def _remove(self) -> None:
        try:
            os.unlink(SOCKET_NAME, dir_fd=self._directory)
        except FileNotFoundError:
            pass


def stop(state_directory: str, run_id: str, reason: str, grace_seconds: Optional[float]) -> int:
    """`agent stop`: 0 when the run's supervisor has been told, 4 when there is no such open run."""
    try:
        request_stop(os.path.join(state_directory, "runs"), run_id, reason, grace_seconds)
    except OSError as error:
        print(f"agent: the run {run_id} is not open: {error.strerror}", file=sys.stderr)
        return EXIT_UNKNOWN
    return 0


def request_stop(
    runs_root: str, run_id: str, reason: str = _DEFAULT_REASON, grace: Optional[float] = None
) -> None:
    """Ask for a run to be ended; raises OSError when nobody is there to do it."""
    if "/" in run_id or run_id in ("", ".", ".."):
        raise FileNotFoundError(2, "that is no run id")
    send_request(runs_root, run_id, json.dumps({"reason": reason, "graceSeconds": grace}).encode())


def send_request(runs_root: str, run_id: str, content: bytes, fds: Sequence[int] = ()) -> None:
    """Send a request, with descriptors, to the run's supervisor; raises OSError without one."""
    folder = os.path.join(runs_root, run_id)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendmsg([content], rights, 0, _address(directory))
    finally:
        os.close(directory)


def members_of(run_id: str, known: Iterable[int] = ()) -> Set[int]:
    """Every living process of a run: below this one, known to an observer, or marked by its id."""
    mark = b"SVC_RUN_ID=" + run_id.encode()
    found = set(descendants(os.getpid())) | set(known)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in found and _is_marked(entry, mark):
            found.add(int(entry))
    return found - {os.getpid(), os.getppid(), 1}


def members_of_session(leader: int) -> Set[int]:
    """Every process in the session that this one began; a daemon has one of its own."""
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if os.getsid(int(entry)) == leader:
                found.add(int(entry))
        except OSError:
            continue
    return found


def ignores_hangup(pid: int) -> bool:
    """Whether a process was told to survive a hangup, as `nohup` does; ended ones need no care."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return True
    for line in lines:
        if line.startswith(b"State:") and b"Z" in line:
            return True
        if line.startswith(b"SigIgn:"):
            return bool(int(line.split()[1], 16) & 1 << (signal.SIGHUP - 1))
    return True


def signal_all(pids: Iterable[int], number: int) -> None:
    """Signal processes; those that are gone or another user's are passed over."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def kill_all(pids: Iterable[int]) -> None:
    """End processes with KILL, and with each its whole group in one step.

    A program that forks faster than it can be listed is ended by it too: the kernel kills a group
    as one, its newest children included. A process stays in the session that its run began, so
    a group of one run has no process of another in it; our own group is left alone.
    """
    members = set(pids)
    groups = set()
    for pid in members:
        try:
            groups.add(os.getpgid(pid))
        except (ProcessLookupError, PermissionError):
            pass
    for group in groups - {0, 1, os.getpgrp()}:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    signal_all(members, signal.SIGKILL)


def signal_number(name: str) -> Optional[int]:
    """The number of `TERM` or `SIGTERM`; None for a name that no signal has."""
    try:
        return int(signal.Signals["SIG" + name.upper().replace("SIG", "", 1)])
    except KeyError:
        return None


def _address(directory: int) -> str:
    # A socket's address has little room, and the folder's own path could be longer.
    return f"/proc/self/fd/{directory}/{SOCKET_NAME}"


def _is_marked(pid: str, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def _parse(content: bytes) -> Optional[StopRequest]:
    try:
        value = json.loads(content)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    reason, grace = value.get("reason"), value.get("graceSeconds")
    if not isinstance(reason, str) or not _REASON.fullmatch(reason):
        reason = _DEFAULT_REASON
    if type(grace) not in (int, float) or not 0 <= float(grace or 0) < 1e9:
        return StopRequest(reason, None)
    return StopRequest(reason, grace)
