"""Calls of the control plane that PID 1 serves itself: each one in a process forked from it.

Who is on the machine connects to a socket in the container and sends a line of JSON,
`{"arguments": [...]}`, with two descriptors: the standard error of the process, and a file that
PID 1 writes to how it ended (`ENDED`). PID 1 answers `+`; from then on the connection is the
process's standard input and output. So a call costs no start of an interpreter, and shares its
memory with PID 1. Only root may connect, and root may call the agent anyway.
"""

from __future__ import annotations

import array
import gc
import json
import os
import signal
import socket
import stat
import struct
import sys
import time
from typing import Callable, Dict, List, NoReturn, Optional, Tuple

from ..process.program import Child
from ..process.signals import restore_defaults
from .reports import GREETING, Record, Reports

SOCKET_NAME = "agent.sock"
ENDED = b"exit %d\n"
"""What the file has in the end."""

_BACKLOG = 64
_MOST_WAITING = 64
_REQUEST_BYTES = 65536
_REQUEST_SECONDS = 10.0
# PID 1 has a few dozen. To close a million, which is a common limit, takes long.
_MOST_DESCRIPTORS = 4096


Serve = Callable[[List[str]], int]


class _Call:
    """A process that serves a call."""

    def __init__(self, child: Child, arguments: List[str], ending: int) -> None:
        self.child = child
        self.arguments = arguments
        self.ending = ending


class Callers:
    """The socket, the connections that have not said what they want, and the calls under way."""

    def __init__(self, directory: str, serve: Serve) -> None:
        """Raises OSError when there cannot be such a socket."""
        path = os.path.join(directory, SOCKET_NAME)
        try:
            os.unlink(path)  # of an earlier life of the container
        except FileNotFoundError:
            pass
        self._serve = serve
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        before = os.umask(0o177)
        try:
            self._socket.bind(path)
        finally:
            os.umask(before)
        self._socket.listen(_BACKLOG)
        self._waiting: Dict[int, Tuple[socket.socket, float]] = {}
        self._calls: Dict[int, _Call] = {}
        self._reports = Reports()

    def fds(self) -> List[int]:
        """What to wait for; `ready` takes what is readable."""
        listening = [self._socket.fileno()] if len(self._waiting) < _MOST_WAITING else []
        return [*listening, *self._waiting, *self._reports.fds()]

    def deadline(self) -> Optional[float]:
        """When `drop_silent` has something to do."""
        return min((until for _, until in self._waiting.values()), default=None)

    def ready(self, fd: int, record: Record) -> Optional[Child]:
        """Take a connection, or what it wants; the process to be reaped if that made one.

        `record` takes what a call reports, and tells whether it is recorded.
        """
        if fd == self._socket.fileno():
            self._accept()
            return None
        if fd in self._reports.fds():
            self._reports.ready(fd, record)
            return None
        connection, _ = self._waiting.pop(fd)
        if _greets(connection):
            self._reports.take(connection)
            return None
        with connection:
            return self._start(connection)

    def drop_silent(self) -> None:
        """Close connections that have not said anything for long."""
        now = time.monotonic()
        for fd, (connection, until) in list(self._waiting.items()):
            if now >= until:
                del self._waiting[fd]
                connection.close()

    def finish(self) -> None:
        """Tell of the calls whose process was reaped."""
        for pid, call in list(self._calls.items()):
            if call.child.exit is not None:
                del self._calls[pid]
                try:
                    os.write(call.ending, ENDED % call.child.exit.status)
                except OSError:
                    pass  # nobody can be told
                os.close(call.ending)

    def readers(self) -> Dict[int, str]:
        """The processes that pass records on, and whose record."""
        return {
            pid: call.arguments[1]
            for pid, call in self._calls.items()
            if call.arguments[0] == "tail" and len(call.arguments) > 1
        }

    # ---------------------------------------------------------------- details

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", peer)[1] != os.geteuid():
            connection.close()
            return
        connection.setblocking(False)
        until = time.monotonic() + _REQUEST_SECONDS
        self._waiting[connection.fileno()] = (connection, until)

    def _start(self, connection: socket.socket) -> Optional[Child]:
        arguments, fds = _request(connection)
        try:
            if arguments is None or len(fds) != 2:
                return None
            errors, ending = fds
            if not stat.S_ISREG(os.fstat(ending).st_mode):
                return None  # a write to anything else might take for ever
            import_for(arguments[0])
            # What the process writes comes behind it.
            connection.send(b"+")
            sys.stdout.flush()
            sys.stderr.flush()
            # No handler of ours may run in the child, where it would wake the parent's loop.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                pid = os.fork()
                if pid == 0:
                    self._become(connection, errors, arguments)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            fds.remove(ending)
        except OSError:
            return None
        finally:
            for fd in fds:
                os.close(fd)
        child = Child(pid)
        self._calls[pid] = _Call(child, arguments, ending)
        return child

    def _become(self, connection: socket.socket, errors: int, arguments: List[str]) -> NoReturn:
        """The child's side: a process as one that the engine starts, and then its end."""
        code = 1
        try:
            os.setsid()
            restore_defaults()
            # As the interpreter has it: a reader that is gone is an error, and no death.
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            connection.setblocking(True)
            os.dup2(connection.fileno(), 0)
            os.dup2(connection.fileno(), 1)
            os.dup2(errors, 2)
            os.closerange(3, _MOST_DESCRIPTORS)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", 1, closefd=False)  # noqa: SIM115
            _name_process(f"agent {arguments[0]}")
            code = self._serve(arguments)
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            except (OSError, ValueError):
                pass
            os._exit(code)


def _greets(connection: socket.socket) -> bool:
    """Whether the connection is one for reports; takes the greeting then, and nothing otherwise."""
    try:
        if connection.recv(len(GREETING) + 1, socket.MSG_PEEK) != GREETING:
            return False
        connection.recv(len(GREETING))
    except OSError:
        return False
    return True


def _request(connection: socket.socket) -> Tuple[Optional[List[str]], List[int]]:
    """The arguments, None when they make no sense, and the descriptors that came with them."""
    fds = array.array("i")
    room = socket.CMSG_LEN(4 * fds.itemsize)
    try:
        content, ancillary, _, _ = connection.recvmsg(_REQUEST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None, []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    try:
        arguments = json.loads(content)["arguments"] if content.endswith(b"\n") else None
    except (ValueError, KeyError, TypeError, RecursionError):
        arguments = None
    sound = isinstance(arguments, list) and all(isinstance(each, str) for each in arguments)
    if not sound or not arguments or arguments[0] == "boot":
        return None, list(fds)
    return arguments, list(fds)


def import_for(subcommand: str) -> None:
    """Import here what each such call would import, from the first one on.

    A workspace in which nothing is executed does not have it in its memory.
    """
    if subcommand == "tail":
        # In PID 1, so that the processes that live long share it.
        from ..record import follow
    if subcommand in ("exec", "session") and "ctypes" not in sys.modules:
        import ctypes  # noqa: F401

        from ..execution import exec_command  # noqa: F401
        from ..record import follow  # noqa: F401

        # A collection in a process forked from here would write to all of this, and so copy it.
        gc.freeze()


def _name_process(name: str) -> None:
    """Name the process for people who look at a list of them; its arguments are PID 1's."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(name)
    except OSError:
        pass
