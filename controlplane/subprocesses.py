"""The one way this project runs another program.

:func:`run_process` promises: an argument list and never a shell; exactly the environment that is
given; standard input is ``/dev/null`` and there is no terminal, so nothing can wait for a person;
the program and everything it starts form one group, which is gone when the call returns, whatever
the way out; output is handed on as it appears and kept only up to a limit. It starts no thread.
What a program was called with may hold a secret, so neither a result nor an exception repeats the
arguments or the environment.

::

    ProcessStartError    the program is missing or cannot be executed
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

_READ_BYTES = 65536
_TICK = 0.05
"""Seconds between two looks at the clock, the cancellation and the watcher."""
_DRAIN_SECONDS = 1.0
"""How long output is still read after the group was killed."""


class ProcessStartError(Exception):
    """The program is missing or cannot be executed; the text names only the program."""


class Tail:
    """Keeps the last ``limit`` bytes of a stream and counts all of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.total = 0

    def feed(self, chunk: bytes) -> None:
        """Add ``chunk`` and forget what no longer fits."""
        self.total += len(chunk)
        self._kept += chunk[-self._limit :] if self._limit else b""
        # Trimming at twice the limit makes the cost of a byte constant.
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]

    def bytes(self) -> bytes:
        """Return what is kept."""
        return bytes(self._kept[-self._limit :]) if self._limit else b""


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a program ended, and what is left of its output.

    ``exit_code`` is ``None`` exactly when ``signal`` names the signal that ended it. The three
    flags say that it was us who ended it, and why.
    """

    exit_code: int | None
    signal: str | None
    tail: bytes
    """The last bytes of both streams, in the order in which they arrived."""
    stdout: bytes
    """The first bytes of standard output, up to the limit asked for."""
    output_bytes: int
    seconds: float
    timed_out: bool = False
    cancelled: bool = False
    stopped: bool = False
    """The watcher asked for the end."""

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        interrupted = self.timed_out or self.cancelled or self.stopped
        return self.exit_code == 0 and not interrupted

    @property
    def ending(self) -> str:
        """The end in words: ``exit code 7`` or ``signal SIGKILL``."""
        return f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"


@functools.cache
def _dies_with_us(of: signal.Signals) -> tuple[str, ...]:
    """Return the prefix that makes the kernel end a program when its parent is killed.

    A worker that dies by SIGKILL cannot clean up; without this its build would go on and publish
    beside the build of the worker that took the job over. ``setpriv`` is part of util-linux; where
    it is missing the program still meets a closed pipe at its next output.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    prefix = (setpriv, "--pdeathsig", of.name.removeprefix("SIG"), "--")
    probe = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    return prefix if probe.returncode == 0 else ()


def run_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    cwd: Path | None = None,
    output: Callable[[bytes], None] | None = None,
    streams: Callable[[str, bytes], None] | None = None,
    cancelled: Event | None = None,
    watch: Callable[[], bool] | None = None,
    tail_limit: int = 64 * 1024,
    stdout_limit: int = 0,
    grace: float = 5.0,
    stop_signal: signal.Signals = signal.SIGTERM,
    descriptors: Sequence[int] = (),
) -> ProcessResult:
    """Run ``argv`` to its end, for at most ``timeout`` seconds, and return how it ended.

    ``output`` gets the bytes of both streams as they appear, ``streams`` the same with ``stdout``
    or ``stderr`` before them; an exception from either ends the program and is raised. ``watch``
    is asked about every 50 ms whether the program must stop. A program that has to stop (time
    limit, ``cancelled``, ``watch``, or our own death) gets ``stop_signal``, and SIGKILL after
    ``grace`` seconds, it and its whole group. ``descriptors`` stay open in it under their numbers,
    and no others do. Raises :class:`ProcessStartError`.
    """
    program = argv[0]
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    name = Path(program).name
    if found is None:
        raise ProcessStartError(f"The program {name} is not installed or not executable.")
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            [*_dies_with_us(stop_signal), found, *argv[1:]],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise ProcessStartError(f"The program {name} could not be started: {reason}.") from None
    run = _Run(process, output, streams, Tail(tail_limit), stdout_limit)
    try:
        ended_by_us = run.follow(started + timeout, cancelled, watch, grace, stop_signal)
    finally:
        run.close()
    code = process.returncode
    return ProcessResult(
        exit_code=code if code >= 0 else None,
        signal=_signal_name(-code) if code < 0 else None,
        tail=run.tail.bytes(),
        stdout=bytes(run.stdout),
        output_bytes=run.tail.total,
        seconds=time.monotonic() - started,
        timed_out=ended_by_us == "time",
        cancelled=ended_by_us == "cancel",
        stopped=ended_by_us == "watch",
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class _Run:
    """One running program: its pipes, its group and the way to its end."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        output: Callable[[bytes], None] | None,
        streams: Callable[[str, bytes], None] | None,
        tail: Tail,
        stdout_limit: int,
    ) -> None:
        self.process = process
        self.tail = tail
        self.stdout = bytearray()
        self._output = output
        self._streams = streams
        self._stdout_limit = stdout_limit
        self._selector = selectors.DefaultSelector()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)

    def follow(
        self,
        deadline: float,
        cancelled: Event | None,
        watch: Callable[[], bool] | None,
        grace: float,
        stop_signal: signal.Signals,
    ) -> str:
        """Read until the leader has ended; return why we ended it, or an empty text."""
        reason = ""
        kill_at = float("inf")
        last_look = 0.0
        while not self._has_ended():
            self._read(_TICK)
            now = time.monotonic()
            if not reason and now - last_look >= _TICK:
                last_look = now
                reason = (
                    ("cancel" if cancelled is not None and cancelled.is_set() else "")
                    or ("time" if now >= deadline else "")
                    or ("watch" if watch is not None and watch() else "")
                )
                if reason:
                    self._signal_group(stop_signal)
                    kill_at = now + grace
            if now >= kill_at:
                self._signal_group(signal.SIGKILL)
                kill_at = now + 1.0
        # The leader is a zombie until it is reaped, so its group number cannot be another's yet.
        self._signal_group(signal.SIGKILL)
        drained = time.monotonic() + _DRAIN_SECONDS
        while self._selector.get_map() and time.monotonic() < drained:
            self._read(_TICK)
        return reason

    def close(self) -> None:
        """End the group if it still lives, reap the leader and close the pipes."""
        if self.process.returncode is None:
            self._signal_group(signal.SIGKILL)
            self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self._selector.close()

    def _has_ended(self) -> bool:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def _read(self, seconds: float) -> None:
        if not self._selector.get_map():
            # Both streams are closed: the end is near, and nothing wakes us up for it.
            time.sleep(0.002)
            return
        for key, _ in self._selector.select(seconds):
            try:
                chunk = os.read(key.fd, _READ_BYTES)
            except BlockingIOError:
                continue
            if not chunk:
                self._selector.unregister(key.fileobj)
                continue
            if key.fileobj is self.process.stdout:
                self.stdout += chunk[: max(0, self._stdout_limit - len(self.stdout))]
            self.tail.feed(chunk)
            if self._output is not None:
                self._output(chunk)
            if self._streams is not None:
                name = "stdout" if key.fileobj is self.process.stdout else "stderr"
                self._streams(name, chunk)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
