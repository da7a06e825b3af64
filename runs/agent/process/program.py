"""Starting a process as the workspace's user, and how it ended."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import termios
from typing import Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

from .memory import die_before_the_agent
from .signals import name_of, restore_defaults

_PR_SET_PDEATHSIG = 1


class StartError(Exception):
    """A process could not be started; the message says what was missing.

    `code`: what a shell would report, 127 for a command that is not there, 126 for one that is no
    program or must not be run.
    """

    def __init__(self, message: str, code: int = 127) -> None:
        super().__init__(message)
        self.code = code


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


class Stdio(NamedTuple):
    """What becomes a process's descriptors 0, 1 and 2; without `stdin` there is no input.

    `terminal`: they are a terminal, which becomes the one that controls the session.
    """

    stdin: Optional[int]
    stdout: int
    stderr: int
    terminal: bool = False

    def share_with(self, account: Account) -> None:
        """Let the user open pipes again by their names, `/dev/stderr` say, in their direction only.

        A pipe is its maker's, who is root here. The user's group may write what is output and read
        what is input: an owner could give itself more, and read what the record is to have.
        """
        if os.geteuid() != 0 or self.terminal:
            return
        for fd, mode in ((self.stdin, 0o640), (self.stdout, 0o620), (self.stderr, 0o620)):
            if fd is not None and stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.fchown(fd, 0, account.gid)
                os.fchmod(fd, mode)

    def close(self) -> None:
        """The process has them; ours are not needed any longer."""
        for fd in {self.stdin, self.stdout, self.stderr} - {None}:
            os.close(fd or 0)


def start(
    argv: Sequence[str],
    *,
    account: Account,
    cwd: str,
    env: Dict[str, str],
    stdio: Stdio,
    dies_with_us: bool = False,
) -> Child:
    """Start `argv` in a session of its own, with `stdio` as its descriptors 0, 1 and 2.

    `argv[0]` is looked up on the PATH in `env` unless it has a slash. `dies_with_us`: the kernel
    kills it when this process ends. Raises StartError.
    """
    prctl = load_prctl() if dies_with_us else None
    stdio.share_with(account)
    report_read, report_write = os.pipe()
    # No handler of ours may run in the child, where it would write into the parent's wakeup pipe.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    parent = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            _exec_in_child(argv, account, cwd, env, stdio, report_write, prctl, parent)
    except OSError as error:
        os.close(report_read)
        raise StartError(f"cannot start a process: {error.strerror}", 126) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(report_write)
    with os.fdopen(report_read, "rb") as report:
        failure = report.read()
    if failure:
        os.waitpid(pid, 0)
        number, _, message = failure.partition(b" ")
        raise StartError(message.decode("utf-8", "replace"), _shell_code(int(number)))
    return Child(pid)


def load_prctl() -> Callable[[int, int], int]:
    """`prctl(2)` with its first two arguments; costs an import, so it is loaded where needed."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(option: int, value: int) -> int:
        return int(libc.prctl(option, value, 0, 0, 0))

    return prctl


def _shell_code(number: int) -> int:
    return 126 if number in (errno.EACCES, errno.ENOEXEC, errno.EPERM) else 127


def _exec_in_child(
    argv: Sequence[str],
    account: Account,
    cwd: str,
    env: Dict[str, str],
    stdio: Stdio,
    report_write: int,
    prctl: Optional[Callable[[int, int], int]],
    parent: int,
) -> NoReturn:
    """The child's side: execs, or tells the parent through the pipe why it could not."""
    doing = "start a process"
    try:
        os.setsid()
        if stdio.terminal:
            fcntl.ioctl(stdio.stdout, termios.TIOCSCTTY, 0)
        stdin = os.open(os.devnull, os.O_RDWR) if stdio.stdin is None else stdio.stdin
        os.dup2(stdin, 0)
        os.dup2(stdio.stdout, 1)
        os.dup2(stdio.stderr, 2)
        os.umask(0o022)
        # Before it is the user, who may not open it.
        die_before_the_agent()
        doing = f"become the user {account.name}"
        account.assume()
        if prctl is not None:
            # Only now: a change of user clears it.
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(127)
        doing = f"enter the working directory {cwd}"
        os.chdir(cwd)
        doing = f"run {argv[0]}"
        restore_defaults()
        os.execvpe(argv[0], list(argv), env)  # noqa: S606 - the shell, where wanted, is in argv
    except BaseException as error:
        number = errno.EIO
        reason = repr(error)
        if isinstance(error, OSError):
            number = error.errno or errno.EIO
            path = env.get("PATH", os.defpath)
            if doing.startswith("run") and number == errno.EACCES and not _exists(argv[0], path):
                # Only a folder of the PATH is closed to the user.
                number = errno.ENOENT
            reason = os.strerror(number)
        message = f"{number} cannot {doing}: {reason}"
        os.write(report_write, message.encode("utf-8", "replace")[:4096])
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
    return any(
        os.path.isfile(candidate) and os.access(candidate, os.X_OK)
        for candidate in _candidates(program, path)
    )


def _exists(program: str, path: str) -> bool:
    return "/" in program or any(map(os.path.exists, _candidates(program, path)))


def _candidates(program: str, path: str) -> List[str]:
    places = [""] if "/" in program else path.split(os.pathsep)
    return [os.path.join(place, program) for place in places]
