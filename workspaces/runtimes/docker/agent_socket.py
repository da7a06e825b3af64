"""Calls of the agent over the socket that PID 1 of a workspace serves, without the engine.

The socket is reached through ``/proc/<pid>/root``, so this works where the engine's processes can
be seen, and as root. Everywhere else, and whenever anything is not as it should be, there is the
engine's exec. Whoever is root in the workspace decides what lies at the path: it is opened without
following links, has to be a socket, and its listener has to be the container's first process.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import re
import socket
import stat
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from docker.models.containers import Container

from workspaces.runtimes.docker.exec_channel import ERROR_TAIL_BYTES, ExecChannel

FOLDERS = ("var", "lib", "svc")
NAME = "agent.sock"
ANSWER_SECONDS = 5.0
"""How long PID 1 may take to accept a call; then the engine is asked."""

_ENDED = re.compile(rb"\0exit (\d{1,3})\n\Z")
_PEER = struct.Struct("3i")


def call(container: Container, arguments: Sequence[str]) -> SocketChannel | None:
    """Start the agent in a running container; None when the engine has to do that."""
    pid = int(container.attrs.get("State", {}).get("Pid") or 0)
    if pid <= 1:
        return None
    try:
        return _call(pid, arguments)
    except (OSError, ValueError):
        return None


def _call(pid: int, arguments: Sequence[str]) -> SocketChannel | None:
    with contextlib.ExitStack() as on_failure:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        on_failure.callback(connection.close)
        connection.settimeout(ANSWER_SECONDS)
        with _opened(pid) as place:
            connection.connect(f"/proc/self/fd/{place}")
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if _PEER.unpack(peer)[0] != pid:
            return None
        errors = os.memfd_create("agent errors", os.MFD_CLOEXEC)
        on_failure.callback(os.close, errors)
        fcntl.fcntl(errors, fcntl.F_SETFL, os.O_APPEND)
        request = json.dumps({"arguments": list(arguments)}).encode() + b"\n"
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [errors]))
        if connection.sendmsg([request], [rights]) != len(request):
            return None
        if connection.recv(1) != b"+":
            return None
        on_failure.pop_all()
    return SocketChannel(connection, pid, errors)


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


class SocketChannel(ExecChannel):
    """The streams of one call: the connection itself, and a file for its errors and its end."""

    tick_seconds = 0.002

    def __init__(self, connection: socket.socket, pid: int, errors: int) -> None:
        super().__init__(connection, b"", self._status)
        self._pid = pid
        self._errors = errors
        self._errors_lock = threading.Lock()

    def _take_pending(self) -> bytes:
        found, self._pending = self._pending, b""
        return found

    def _said_errors(self) -> bytes:
        return _ENDED.sub(b"", self._end_of_errors())[-ERROR_TAIL_BYTES:]

    def _end_of_errors(self) -> bytes:
        with self._errors_lock:
            if self._errors < 0:
                return b""
            size = os.fstat(self._errors).st_size
            room = ERROR_TAIL_BYTES + 64
            return os.pread(self._errors, room, max(0, size - room))

    def _status(self) -> tuple[bool, int | None]:
        ended = _ENDED.search(self._end_of_errors())
        if ended is not None:
            return False, int(ended[1])
        # Without its PID 1 nobody tells any more how it ended.
        return Path(f"/proc/{self._pid}/fd").is_dir(), None

    def close(self) -> None:
        """Give the connection up; how it ended can still be asked for where it was known."""
        super().close()
        with self._errors_lock:
            errors, self._errors = self._errors, -1
        if errors >= 0:
            os.close(errors)
