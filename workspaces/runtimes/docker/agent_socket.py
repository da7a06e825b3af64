"""Calls of the agent over the socket that PID 1 of a workspace serves, without the engine.

The socket is reached through ``/proc/<pid>/root``, so this works where the engine's processes can
be seen, and as root. Everywhere else, and whenever anything is not as it should be, there is the
engine's exec. Whoever is root in the workspace decides what lies at the path: it is opened without
following links, has to be a socket, and its listener has to be the container's first process.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from workspaces.runtimes.docker.exec_channel import ExecChannel

if TYPE_CHECKING:  # gateways call agents, too, and need nothing else of the Docker SDK
    from docker.models.containers import Container

FOLDERS = ("var", "lib", "svc")
NAME = "agent.sock"
ERROR_BYTES = 64 * 1024
ANSWER_SECONDS = 5.0
"""How long PID 1 may take to accept a call; then the engine is asked."""
SERVING_SECONDS = 3.0
"""How long after a container's start its PID 1 may take until it serves calls."""
SERVING_TICK_SECONDS = 0.01
MOST_KNOWN = 4096

_ENDED = re.compile(rb"exit (\d{1,3})\n")
_PEER = struct.Struct("3i")


def call_soon(
    container: Container, arguments: Sequence[str], cancelled: threading.Event | None = None
) -> SocketChannel | None:
    """Start the agent in a container that may have just started, and not serve calls yet.

    None when the engine has to do that: ``SERVING_SECONDS`` after the start of the container, and
    at once where its first process is gone, or its files cannot be reached.
    """
    until = time.monotonic() + SERVING_SECONDS - _age_of(container)
    pid = _pid_of(container)
    while (channel := call(container, arguments)) is None:
        reachable = pid > 1 and os.access(f"/proc/{pid}/root", os.X_OK)
        if not reachable or time.monotonic() >= until:
            return None
        if cancelled is None:
            time.sleep(SERVING_TICK_SECONDS)
        elif cancelled.wait(SERVING_TICK_SECONDS):
            return None
    return channel


def _pid_of(container: Container) -> int:
    return int(container.attrs.get("State", {}).get("Pid") or 0)


def _age_of(container: Container) -> float:
    """Return for how many seconds a container has run; the engine has the same clock."""
    started_at = container.attrs.get("State", {}).get("StartedAt") or ""
    try:
        # With nanoseconds, of which only so many are understood.
        moment = datetime.fromisoformat(started_at[:19]).replace(tzinfo=UTC)
    except ValueError:
        return SERVING_SECONDS
    return max(0.0, (datetime.now(UTC) - moment).total_seconds())


def call(container: Container, arguments: Sequence[str]) -> SocketChannel | None:
    """Start the agent in a running container; None when the engine has to do that."""
    called = call_process(_pid_of(container), arguments)
    return None if called is None else SocketChannel(*called)


class Called(NamedTuple):
    """A call under way; the descriptors belong to whoever has it."""

    connection: socket.socket
    pid: int
    errors: int
    """A pipe of what the agent says on its standard error."""
    ending: int
    """A file that has in the end how the agent ended; ``ended`` reads it."""


def call_process(pid: int, arguments: Sequence[str]) -> Called | None:
    """Start the agent in the container whose first process this is; None when that cannot be.

    Waits for ``ANSWER_SECONDS`` at most.
    """
    if pid <= 1:
        return None
    try:
        return _call(pid, arguments)
    except (OSError, ValueError):
        return None


def is_first_process(pid: int, container_id: str) -> bool:
    """Tell whether a process of this machine is in the container that the engine says it is in.

    An engine of another machine has other processes under the same numbers.
    """
    if pid <= 1:
        return False
    try:
        mounts = Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "replace")
    except OSError:
        return False
    # The engine mounts files of its own folder of the container, names of hosts among them.
    return f"/containers/{container_id}/" in mounts


def ended(ending: int) -> int | None:
    """Return the exit code that a call's file has; None while there is none."""
    found = _ENDED.fullmatch(os.pread(ending, 64, 0))
    return None if found is None else int(found[1])


def _call(pid: int, arguments: Sequence[str]) -> Called | None:
    with contextlib.ExitStack() as on_failure:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        on_failure.callback(connection.close)
        connection.settimeout(ANSWER_SECONDS)
        with _opened(pid) as place:
            connection.connect(f"/proc/self/fd/{place}")
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if _PEER.unpack(peer)[0] != pid:
            return None
        ending = os.memfd_create("agent ending", os.MFD_CLOEXEC)
        on_failure.callback(os.close, ending)
        errors, theirs = os.pipe2(os.O_CLOEXEC)
        on_failure.callback(os.close, errors)
        try:
            request = json.dumps({"arguments": list(arguments)}).encode() + b"\n"
            rights = array.array("i", [theirs, ending])
            sent = connection.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        finally:
            os.close(theirs)
        if sent != len(request) or connection.recv(1) != b"+":
            return None
        on_failure.pop_all()
    return Called(connection, pid, errors, ending)


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[int]:
    """Open the socket's file, through no link but that of the process's own root."""
    with contextlib.ExitStack() as held:

        def opened(path: str, flags: int, folder: int | None = None) -> int:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC | flags, dir_fd=folder)
            held.callback(os.close, fd)
            return fd

        at = opened(f"/proc/{pid}/root", os.O_DIRECTORY)
        for name in FOLDERS:
            at = opened(name, os.O_DIRECTORY | os.O_NOFOLLOW, at)
        place = opened(NAME, os.O_NOFOLLOW, at)
        if not stat.S_ISSOCK(os.fstat(place).st_mode):
            raise ValueError("what is there is no socket")
        yield place


class KnownPlaces:
    """Where the first processes of containers are, so that the engine is not asked each time.

    A process is known by its number and the moment of its start: another one of that number is
    another place, and one that is gone is none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[UUID, tuple[int, bytes]] = {}

    def remember(self, run_id: UUID, container: Container) -> None:
        """Know the container that the engine has just told of."""
        pid = _pid_of(container)
        started = _start_of(pid) if pid > 1 else None
        with self._lock:
            self._known.pop(run_id, None)
            if started is not None:
                self._known[run_id] = (pid, started)
                while len(self._known) > MOST_KNOWN:
                    del self._known[next(iter(self._known))]

    def call(self, run_id: UUID, arguments: Sequence[str]) -> SocketChannel | None:
        """Start the agent in the run's container; None when the engine has to be asked."""
        with self._lock:
            known = self._known.get(run_id)
        if known is None:
            return None
        pid, started = known
        with contextlib.suppress(OSError, ValueError):
            if _start_of(pid) == started and (called := _call(pid, arguments)):
                return SocketChannel(*called)
        with self._lock:
            self._known.pop(run_id, None)
        return None


def _start_of(pid: int) -> bytes | None:
    """Return when a process started, in the kernel's ticks; None when there is none."""
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
        # The name stands in brackets, and may have brackets and blanks itself.
        return told.rpartition(b")")[2].split()[19]
    except (OSError, IndexError):
        return None


class SocketChannel(ExecChannel):
    """The streams of one call: the connection, a pipe of errors, and a file for how it ended."""

    tick_seconds = 0.002

    def __init__(self, connection: socket.socket, pid: int, errors: int, ending: int) -> None:
        super().__init__(connection, b"", self._status)
        os.set_blocking(errors, False)
        self._pid = pid
        self._errors = errors
        self._ending = ending
        self._lock = threading.Lock()

    def _take_pending(self) -> bytes:
        found, self._pending = self._pending, b""
        return found

    def _wait(self, events: int, deadline: float, wake: int = -1) -> int:
        while True:
            connection, errors = self._socket.fileno(), self._errors
            if connection < 0:
                return events
            poll = select.poll()
            poll.register(connection, events)
            for fd in (errors, wake):
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
            left = deadline - time.monotonic()
            found = dict(poll.poll(max(0.0, left) * 1000))
            if errors in found:
                self._take_errors()
                if len(found) == 1 and left > 0:
                    continue
            return found.get(connection, 0)

    def _take_errors(self) -> None:
        """Keep the end of what it says, so that it never waits for somebody to read it."""
        with self._lock:
            while self._errors >= 0:
                try:
                    said = os.read(self._errors, ERROR_BYTES)
                except OSError:
                    return
                if not said:
                    self._close_errors()
                    return
                self._said.feed(said)
                if len(said) < ERROR_BYTES:
                    return

    def _close_errors(self) -> None:
        errors, self._errors = self._errors, -1
        os.close(errors)

    def _said_errors(self) -> bytes:
        self._take_errors()
        return super()._said_errors()

    def _status(self) -> tuple[bool, int | None]:
        with self._lock:
            code = None if self._ending < 0 else ended(self._ending)
        if code is not None:
            return False, code
        # Without its PID 1 nobody tells any more how it ended.
        return Path(f"/proc/{self._pid}/fd").is_dir(), None

    def close(self) -> None:
        """Give the connection up; how it ended can still be asked for where it was known."""
        super().close()
        with self._lock:
            if self._errors >= 0:
                self._close_errors()
            ending, self._ending = self._ending, -1
        if ending >= 0:
            os.close(ending)
