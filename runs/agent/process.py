"""Starting a process as the workspace's user, and how it ended."""

from __future__ import annotations

import errno
import os
import signal
from typing import Dict, NamedTuple, NoReturn, Optional, Sequence, Tuple

from .signals import name_of, restore_defaults


class StartError(Exception):
    """A process could not be started; the message says what was missing."""


class Exit(NamedTuple):
    """How a process ended: either `code` or `signal_number` is set."""

    code: Optional[int]
    signal_number: Optional[int]

    @classmethod
    def from_wait_status(cls, status: int) -> Exit:
        """What `waitpid` reported."""
        if os.WIFSIGNALED(status):
            return cls(None, os.WTERMSIG(status))
        return cls(os.WEXITSTATUS(status), None)

    @property
    def signal_name(self) -> Optional[str]:
        """`SIGKILL`, or None when the process exited by itself."""
        return None if self.signal_number is None else name_of(self.signal_number)

    @property
    def status(self) -> int:
        """The exit status that a shell would report: 128 + n for signal n."""
        if self.signal_number is not None:
            return 128 + self.signal_number
        return self.code or 0

    def __str__(self) -> str:
        if self.signal_number is not None:
            return f"was killed by {self.signal_name}"
        return f"exited with code {self.code}"


class Account(NamedTuple):
    """Who user processes run as."""

    name: str
    uid: int
    gid: int
    groups: Tuple[int, ...]

    def assume(self) -> None:
        """Become this user for good; without root, stay who we are."""
        if os.geteuid() != 0:
            return
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)


class Child:
    """A started process, the leader of its own session and process group."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.exit: Optional[Exit] = None

    def signal_group(self, number: int) -> None:
        """Signal the whole process group; nothing happens when it is empty."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def group_is_alive(self) -> bool:
        """Whether any process of the group is left."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def start(
    argv: Sequence[str], *, account: Account, cwd: str, env: Dict[str, str], output_fd: int
) -> Child:
    """Start `argv` in a session of its own: stdin empty, stdout and stderr both `output_fd`.

    `argv[0]` is looked up on the PATH in `env` unless it has a slash. Raises StartError.
    """
    report_read, report_write = os.pipe()
    # No handler of ours may run in the child, where it would write into the parent's wakeup pipe.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(argv, account, cwd, env, output_fd, report_write)
    except OSError as error:
        os.close(report_read)
        raise StartError(f"cannot start a process: {error.strerror}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(report_write)
    with os.fdopen(report_read, "rb") as report:
        failure = report.read()
    if failure:
        os.waitpid(pid, 0)
        raise StartError(failure.decode("utf-8", "replace"))
    return Child(pid)


def _become(
    argv: Sequence[str],
    account: Account,
    cwd: str,
    env: Dict[str, str],
    output_fd: int,
    report_write: int,
) -> NoReturn:
    """The child's side: execs, or tells the parent through the pipe why it could not."""
    doing = "start a process"
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.umask(0o022)
        doing = f"become the user {account.name}"
        account.assume()
        doing = f"enter the working directory {cwd}"
        os.chdir(cwd)
        doing = f"run {argv[0]}"
        restore_defaults()
        os.execvpe(argv[0], list(argv), env)  # noqa: S606 - the shell, where wanted, is in argv
    except BaseException as error:
        reason = (
            os.strerror(error.errno or errno.EIO) if isinstance(error, OSError) else repr(error)
        )
        os.write(report_write, f"cannot {doing}: {reason}".encode("utf-8", "replace")[:4096])
    finally:
        os._exit(127)


def can_execute(account: Account, env: Dict[str, str], program: str) -> bool:
    """Whether the user, with this environment, would find `program` and may execute it.

    Asked in a child that has become the user, because root may see and execute what the user may
    not.
    """
    pid = os.fork()
    if pid == 0:
        found = False
        try:
            account.assume()
            found = _resolves(program, env.get("PATH", os.defpath))
        finally:
            os._exit(0 if found else 1)
    return os.waitpid(pid, 0)[1] == 0


def _resolves(program: str, path: str) -> bool:
    places = [""] if "/" in program else path.split(os.pathsep)
    for place in places:
        candidate = os.path.join(place, program)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return True
    return False
