"""Processes of the product as children of a test: started, frozen, killed, and their logs kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import LONG_WAIT, rest

CHECKOUT = Path(__file__).resolve().parents[2]


def wait_for(
    condition: Callable[[], object], what: str | Callable[[], str], seconds: float = LONG_WAIT
) -> float:
    """Wait until ``condition`` holds and return how long it took; fail with ``what`` otherwise."""
    started = began = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        if waited >= seconds:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"after {waited:.1f} s still not: {told}")
        rest(began)
        began = time.monotonic()
    return time.monotonic() - started


def runs(argument: str) -> bool:
    """Whether a process of this machine, in a container or not, has exactly this argument."""
    return any(_having(argument))


def pids_having(argument: str) -> set[int]:
    """The processes of this machine that have exactly this argument."""
    return set(_having(argument))


def end(argument: str) -> None:
    """End every process of this machine that has exactly this argument (SIGTERM)."""
    for pid in _having(argument):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def end_until(argument: str, condition: Callable[[], object], what: str) -> None:
    """End every process that has this argument, also those to come, until ``condition`` holds."""

    def over() -> object:
        end(argument)
        return condition()

    wait_for(over, what)


def _having(argument: str) -> Iterator[int]:
    wanted = argument.encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                    yield int(entry.name)


@contextmanager
def suspended(pid: int | None) -> Iterator[None]:
    """Freeze a process of somebody else inside the block (SIGSTOP, SIGCONT)."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Child:
    """One process of the product. ``kill`` means SIGKILL: nothing of it gets to clean up."""

    def __init__(self, argv: list[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *argv],
                cwd=CHECKOUT,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it lives."""
        return self._process.poll()

    def says(self, text: str) -> int:
        """How often its log has ``text`` by now."""
        return self.log.read_text(errors="replace").count(text)

    def kill(self) -> float:
        """SIGKILL exactly this process, as the kernel would for want of memory; when, in UTC."""
        if self._process.poll() is None:
            self._process.kill()
        at = time.time()
        self._process.wait(LONG_WAIT)
        return at

    def kill_group(self) -> None:
        """SIGKILL the process and all that it started in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(LONG_WAIT)

    def freeze(self) -> None:
        """Stop it in its tracks (SIGSTOP): its connections stay open and it does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def abort(self) -> None:
        """SIGABRT it: with Python's fault handler it logs the stacks of its threads and dies."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(LONG_WAIT)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._process.terminate()

    def wait(self, seconds: float) -> int:
        """Wait for its end and return its exit code."""
        return self._process.wait(seconds)


class Worker(Child):
    """A build worker."""

    def wait_consuming(self) -> None:
        """Wait until the broker delivers to it."""
        wait_for(lambda: self.exit_code is not None or self.says("consuming"), "a worker consumes")
        assert self.exit_code is None, self.log.read_text()
