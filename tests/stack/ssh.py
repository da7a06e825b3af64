"""OpenSSH's programs as people use them, each with a key and a configuration of its own."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

HOST = "workspace"
"""What the clients' configuration calls the workspace."""

SECONDS = LONG_WAIT

CONFIG = """\
Host *
    BatchMode yes
    ControlMaster no
    GlobalKnownHostsFile /dev/null
    HostName 127.0.0.1
    IdentitiesOnly yes
    IdentityAgent none
    IdentityFile {folder}/key
    LogLevel ERROR
    Port {port}
    StrictHostKeyChecking yes
    UpdateHostKeys no
    User "{user}"
    UserKnownHostsFile {folder}/known_hosts
"""


@dataclass(frozen=True, slots=True)
class Done:
    """What a client has said, and how it ended (minus the signal's number when by one)."""

    code: int
    out: bytes
    err: str


@dataclass(frozen=True, slots=True)
class Begun:
    """A client whose command goes on, and the first line that the command wrote."""

    process: subprocess.Popen[bytes]
    line: str


class Client:
    """One person at one machine: a key pair, an ``ssh_config``, and the programs that read it."""

    def __init__(self, folder: Path, *, port: int, known_host: str, user: str) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        self.config = folder / "config"
        self.config.write_text(CONFIG.format(folder=folder, port=port, user=user))
        (folder / "known_hosts").write_text(known_host)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "f@laptop", "-f", folder / "key"],
            check=True,
        )

    @property
    def public_key(self) -> str:
        """The line that is registered."""
        return (self.folder / "key.pub").read_text().strip()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the programs: nothing of whoever runs the tests."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
            "RSYNC_RSH": f"ssh -F {self.config}",
            "GIT_SSH_COMMAND": f"ssh -F {self.config}",
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def ssh(self, *arguments: str, **how: object) -> Done:
        """Run ``ssh`` to its end."""
        return self.run("ssh", "-F", str(self.config), *arguments, **how)  # type: ignore[arg-type]

    def command(self, command: str, *options: str, **how: object) -> Done:
        """Have one command executed in the workspace."""
        return self.ssh(*options, HOST, command, **how)

    def said(self, command: str, *options: str, **how: object) -> bytes:
        """Have a command executed that has to succeed; return what it wrote."""
        done = self.command(command, *options, **how)
        assert done.code == 0, done
        return done.out

    def run(
        self,
        *argv: str,
        given: bytes | None = None,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        timeout: float = SECONDS,
        cwd: Path | None = None,
    ) -> Done:
        """Run a program to its end; ``given`` is its input, or ``stdin`` is where it reads."""
        with self.start(*argv, stdin=stdin, stdout=stdout, cwd=cwd) as process:
            try:
                out, err = process.communicate(given or b"" if stdin is None else None, timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
                shown = f"{out[-500:]!r} {err[-2000:]!r}"
                raise AssertionError(f"not within {timeout:g} s: {argv}: {shown}") from None
        return Done(process.returncode, out or b"", err.decode("utf-8", "replace"))

    @contextlib.contextmanager
    def start(
        self,
        *argv: str,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        cwd: Path | None = None,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start a program; what still runs of it at the end of the block is killed."""
        with subprocess.Popen(
            argv,
            bufsize=0,  # what is read of it is neither more nor less than what was asked for
            env=self.environment,
            stdin=subprocess.PIPE if stdin is None else stdin,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
            cwd=cwd,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    @contextlib.contextmanager
    def begun(self, command: str, *options: str) -> Iterator[Begun]:
        """Have a command executed that goes on, and wait for the first line that it writes."""
        argv = ("ssh", "-F", str(self.config), *options, HOST, command)
        with self.start(*argv) as process:
            assert process.stdout is not None
            line = process.stdout.readline().decode().strip()
            assert line, f"{command} wrote nothing: {process.communicate(timeout=SECONDS)}"
            yield Begun(process, line)

    @contextlib.contextmanager
    def connection(self, *options: str) -> Iterator[tuple[str, ...]]:
        """Keep one connection open; yields the options with which others use it."""
        shared = ("-S", str(self.folder / f"shared-{next(self._numbers)}"))
        argv = ("ssh", "-F", str(self.config), "-M", *shared, "-N", *options, HOST)
        with self.start(*argv) as master:
            eventually(
                lambda: (
                    master.poll() is not None or self.ssh(*shared, "-O", "check", HOST).code == 0
                ),
                what="the connection is there",
            )
            if master.poll() is not None:
                assert master.stderr is not None
                raise AssertionError(f"there is no connection: {master.stderr.read()!r}")
            yield shared
            self.ssh(*shared, "-O", "exit", HOST)
            master.wait(SECONDS)

    @contextlib.contextmanager
    def terminal(
        self, command: str | None = None, *options: str, columns: int = 80, rows: int = 24
    ) -> Iterator[Terminal]:
        """Open ``ssh -tt`` in a terminal of its own."""
        argv = ["ssh", "-F", str(self.config), "-tt", *options, HOST]
        if command is not None:
            argv.append(command)
        terminal = Terminal(argv, self.environment, columns=columns, rows=rows)
        try:
            yield terminal
        finally:
            terminal.close()


class Terminal:
    """A program in a terminal; every byte that the terminal is given to show is kept."""

    def __init__(
        self, argv: list[str], environment: dict[str, str], *, columns: int, rows: int
    ) -> None:
        self.said = b""
        """What was shown so far."""
        self._seen = 0
        self._master, slave = pty.openpty()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the terminal
        try:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            # The terminal has to be the controlling one: else nobody is told of its new size.
            self.process = subprocess.Popen(
                ["setsid", "--ctty", *argv],
                env=environment,
                stdin=slave,
                stdout=slave,
                stderr=self._errors,
            )
        finally:
            os.close(slave)

    @property
    def errors(self) -> str:
        """What the client itself said."""
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")

    def type(self, text: str | bytes) -> None:
        """Press keys."""
        os.write(self._master, text.encode() if isinstance(text, str) else text)

    def until(self, text: bytes, within: float = SECONDS) -> bytes:
        """Read until this is shown, after what was waited for before; return what led to it."""
        deadline = time.monotonic() + within
        while (at := self.said.find(text, self._seen)) < 0:
            shown = self.said[-1000:]
            assert self._read(deadline), f"{text!r} was not shown: {shown!r} {self.errors}"
        start, self._seen = self._seen, at + len(text)
        return self.said[start:at]

    def resize(self, columns: int, rows: int) -> None:
        """Make the window another size, which the client is told as by any terminal."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def ended(self, within: float = SECONDS) -> int:
        """Read to the end; return the client's exit code."""
        deadline = time.monotonic() + within
        while self._read(deadline):
            pass
        return self.process.wait(max(1.0, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        """Read once; False at the end. Fails at the deadline."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more was shown after {self.said[-1000:]!r} {self.errors}"
        try:
            part = os.read(self._master, 65536)
        except OSError:  # nobody has the terminal open any more
            return False
        self.said += part
        return bool(part)

    def close(self) -> None:
        """Turn it off; whoever still uses it is killed."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        self._errors.close()


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Return a folder with so short a name that there is room for a socket's."""
    folder = Path(tempfile.mkdtemp(prefix="ssh-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
