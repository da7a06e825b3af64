"""Calls of the control plane that PID 1 serves itself: each one in a process forked from it.

Who is on the machine connects to a socket in the container and sends a line of JSON,
`{"arguments": [...]}`, with two descriptors: the standard error of the process, and a file that
PID 1 writes to how it ended (`ENDED`). PID 1 answers `+`; from then on the connection is the
process's standard input and output. So a call costs no start of an interpreter, and shares its
memory with PID 1. Only root may connect, and root may call the agent anyway.

A call of `tail` whose record is at rest has no process meanwhile (`record/resting.py`).
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
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

from ..process.program import Child
from ..process.signals import forget_handlers
from ..record.resting import MOST_DESCRIPTORS, SOCKET_NAME, Rest, RestingTail, RestingTails
from .reports import GREETING, Record, Reports

ENDED = b"exit %d\n"
"""What the file has in the end."""

_BACKLOG = 64
_MOST_WAITING = 64
_REQUEST_BYTES = 65536
_REQUEST_SECONDS = 10.0

Serve = Callable[[List[str]], int]


class _Call:
    """A process that serves a call, or a tail that rests, which has none."""

    def __init__(self, arguments: List[str], ending: int) -> None:
        self.child: Optional[Child] = None
        self.arguments = arguments
        self._ending = ending

    def ended(self, status: int) -> None:
        """Tell who called."""
        try:
            os.write(self._ending, ENDED % status)
        except OSError:
            pass  # nobody can be told
        os.close(self._ending)


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
        self._runs_root = os.path.join(os.path.abspath(directory), "runs")
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
        self._resting = RestingTails()
        self._rested: Dict[int, _Call] = {}
        self._is_ending = False

    def fds(self) -> List[int]:
        """What to wait for; `ready` takes what is readable."""
        listening = [self._socket.fileno()] if len(self._waiting) < _MOST_WAITING else []
        return [*listening, *self._waiting, *self._reports.fds(), *self._resting.fds()]

    def deadline(self) -> Optional[float]:
        """When `tick` has something to do."""
        due = [self._resting.deadline(), *(until for _, until in self._waiting.values())]
        return min((moment for moment in due if moment is not None), default=None)

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
        if fd in self._rested:
            return self._wake(fd)
        connection, _ = self._waiting.pop(fd)
        if _greets(connection):
            self._reports.take(connection)
            return None
        with connection:
            return self._take(connection)

    def tick(self) -> List[Child]:
        """Do what is due; the processes to be reaped if that made any."""
        self._drop_silent()
        return self._wake_all(self._resting.awake())

    def end_rest(self) -> List[Child]:
        """The container is to end: have a process pass on the end of every record, as `tick`."""
        self._is_ending = True
        return self._wake_all(self._resting.fds())

    def _drop_silent(self) -> None:
        now = time.monotonic()
        for fd, (connection, until) in list(self._waiting.items()):
            if now >= until:
                del self._waiting[fd]
                connection.close()

    def finish(self) -> None:
        """Tell of the calls whose process was reaped."""
        for pid, call in list(self._calls.items()):
            if call.child is not None and call.child.exit is not None:
                del self._calls[pid]
                call.ended(call.child.exit.status)

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
        if _peer(connection)[1] != os.geteuid():
            connection.close()
            return
        connection.setblocking(False)
        until = time.monotonic() + _REQUEST_SECONDS
        self._waiting[connection.fileno()] = (connection, until)

    def _take(self, connection: socket.socket) -> Optional[Child]:
        request, fds = _request(connection)
        try:
            if len(fds) != 2:
                return None
            if "rest" in request:
                self._rest(connection, Rest(*request["rest"]), fds)
                return None
            arguments = _arguments(request)
            errors, ending = fds
            if arguments is None or not stat.S_ISREG(os.fstat(ending).st_mode):
                return None  # a write to anything else might take for ever
            import_for(arguments[0])
            # What the process writes comes behind it.
            connection.send(b"+")
            call = _Call(arguments, ending)
            fds.remove(ending)
            try:
                return self._fork(call, connection, errors, lambda: self._serve(arguments))
            except OSError:
                call.ended(128 + signal.SIGKILL)  # as one that the kernel has ended
                return None
        except (OSError, TypeError):
            return None
        finally:
            for fd in fds:
                os.close(fd)

    def _fork(
        self, call: _Call, connection: socket.socket, errors: int, serve: Callable[[], int]
    ) -> Child:
        """Raises OSError when there is no room for a process."""
        sys.stdout.flush()
        sys.stderr.flush()
        # No handler of ours may run in the child, where it would wake the parent's loop.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _serve_in_child(connection, errors, call.arguments[0], serve)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        call.child = Child(pid)
        self._calls[pid] = call
        return call.child

    def _rest(self, connection: socket.socket, rest: Rest, fds: List[int]) -> None:
        """Take the streams of a tail of ours, whose process ends once it is told that we have."""
        call = self._calls.get(_peer(connection)[0])
        # `exec --then tail` is one, too, and from here on like any other.
        if call is None or "tail" not in call.arguments:
            return
        if self._is_ending or not self._resting.has_room:
            return
        tail = RestingTail(self._runs_root, rest, *fds)
        fds.clear()
        try:
            connection.send(b"+")
        except OSError:
            tail.close()  # a process that was not told, if it lives, goes on with it
            return
        del self._calls[_peer(connection)[0]]
        call.arguments = ["tail", rest.run_id]
        self._rested[self._resting.add(tail)] = call

    def _wake(self, number: int) -> Optional[Child]:
        from ..record.follow import go_on

        call, tail = self._rested.pop(number), self._resting.remove(number)
        try:
            return self._fork(
                call, tail.connection, tail.errors, lambda: go_on(self._runs_root, tail.rest)
            )
        except OSError:
            call.ended(128 + signal.SIGKILL)  # as one that the kernel has ended
            return None
        finally:
            tail.close()

    def _wake_all(self, numbers: List[int]) -> List[Child]:
        return [child for child in map(self._wake, numbers) if child is not None]


def _serve_in_child(
    connection: socket.socket, errors: int, name: str, serve: Callable[[], int]
) -> NoReturn:
    """The child's side: a process as one that the engine starts, and then its end."""
    code = 1
    try:
        os.setsid()
        forget_handlers()
        # As the interpreter has it: a reader that is gone is an error, and no death.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        connection.setblocking(True)
        os.dup2(connection.fileno(), 0)
        os.dup2(connection.fileno(), 1)
        os.dup2(errors, 2)
        os.closerange(3, MOST_DESCRIPTORS)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, closefd=False)  # noqa: SIM115
        _name_process(f"agent {name}")
        if name != "tail":  # which heeds some, and lets them come itself
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
        code = serve()
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


def _peer(connection: socket.socket) -> Tuple[int, int]:
    """The process that has connected, and its user."""
    size = struct.calcsize("3i")
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, user, _ = struct.unpack("3i", told)
    return pid, user


def _request(connection: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """What is asked, nothing when that makes no sense, and the descriptors that came with it."""
    fds = array.array("i")
    room = socket.CMSG_LEN(4 * fds.itemsize)
    try:
        content, ancillary, _, _ = connection.recvmsg(_REQUEST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return {}, []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    try:
        request = json.loads(content) if content.endswith(b"\n") else None
    except (ValueError, RecursionError):
        request = None
    return request if isinstance(request, dict) else {}, list(fds)


def _arguments(request: Dict[str, Any]) -> Optional[List[str]]:
    arguments = request.get("arguments")
    sound = isinstance(arguments, list) and all(isinstance(each, str) for each in arguments)
    return arguments if sound and arguments and arguments[0] != "boot" else None


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
