"""A terminal here on a command there: keys, sizes and the way out, as with ssh."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from types import FrameType

import click

from controlplane_cli.executing import exit_code, tell_failure
from controlplane_cli.interrupts import LEFT, first_for
from controlplane_client import Attachment, ControlPlaneError, Run

_READ_BYTES = 4096


def size_here() -> tuple[int, int]:
    """Return columns and rows of this terminal, 80 and 24 where there is none."""
    # Not shutil's: it believes COLUMNS, which does not change with the window.
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            found = os.get_terminal_size(stream.fileno())
            if found.columns and found.lines:
                return found.columns, found.lines
    return 80, 24


def attach(run: Run, *, after: int | None = 0) -> int:
    """Show a command's terminal or pipes until it ends, and return its exit code.

    Enter, ~ and . leave it to itself. Without a terminal here, input is what is piped in.
    """
    with run.attach(after) as attached:
        raw = attached.terminal is not None and sys.stdin.isatty()
        left = threading.Event()
        interrupts = contextlib.nullcontext() if raw else first_for(lambda: _interrupt(attached))
        try:
            with interrupts, _keys(raw), _Input(attached, left, sizes=raw) as given:
                given.start()
                outputs = {"stderr": sys.stderr.fileno()}
                for part in attached.output():
                    _write(outputs.get(part.stream, sys.stdout.fileno()), part.content)
        except KeyboardInterrupt:
            left.set()
        if attached.end is None and left.is_set():
            told = (
                f"\ndetached; the command keeps running: svc attach {run.id}, svc cancel {run.id}"
            )
            click.echo(told, err=True)
            return LEFT
    info = run.refresh()
    tell_failure(info)
    return exit_code(info)


def _interrupt(attached: Attachment) -> None:
    with contextlib.suppress(ControlPlaneError):
        attached.signal("INT")


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


@contextlib.contextmanager
def _keys(raw: bool) -> Iterator[None]:
    """Have each key come as it is; what the terminal was like before comes back."""
    if not raw:
        yield
        return
    before = termios.tcgetattr(sys.stdin.fileno())
    try:
        tty.setraw(sys.stdin.fileno())
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)


class Escape:
    """Finds Enter, ~ and . among keys; ~ twice is one."""

    def __init__(self) -> None:
        self._begins, self._waits = True, False

    def passed(self, keys: bytes) -> tuple[bytes, bool]:
        """Return the keys that are for the command, and whether to leave."""
        out = bytearray()
        for key in keys:
            if self._waits:
                self._waits = False
                if key == ord("."):
                    return bytes(out), True
                if key != ord("~"):
                    out.append(ord("~"))
            elif self._begins and key == ord("~"):
                self._begins, self._waits = False, True
                continue
            out.append(key)
            self._begins = key in b"\r\n"
        return bytes(out), False


class _Input:
    """Gives a command what is typed here, and the size of this terminal when it changes."""

    def __init__(self, attached: Attachment, left: threading.Event, *, sizes: bool) -> None:
        self._attached, self._left, self._sizes = attached, left, sizes
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._over = False

    def start(self) -> None:
        """Begin, with the size that the terminal has now."""
        if self._sizes:
            os.write(self._writer, b"s")
        self._thread.start()

    def __enter__(self) -> _Input:
        if self._sizes:
            self._before = signal.signal(signal.SIGWINCH, self._resized)
        return self

    def __exit__(self, *_: object) -> None:
        if self._sizes:
            signal.signal(signal.SIGWINCH, self._before)
        self._over = True
        os.write(self._writer, b"o")
        self._thread.join(1)

    def _resized(self, number: int, frame: FrameType | None) -> None:
        os.write(self._writer, b"s")

    def _run(self) -> None:
        escape = Escape()
        sources = [self._reader, *([sys.stdin.fileno()] if self._attached.input_open else [])]
        with contextlib.suppress(ControlPlaneError):
            while not self._over:
                ready, _, _ = select.select(sources, [], [])
                if self._reader in ready:
                    os.read(self._reader, _READ_BYTES)
                    if self._sizes and not self._over:
                        self._attached.resize(*size_here())
                elif not self._given(escape):
                    sources.remove(sys.stdin.fileno())

    def _given(self, escape: Escape) -> bool:
        """Pass on what is there to read; tell whether there may be more."""
        keys = os.read(sys.stdin.fileno(), _READ_BYTES)
        if not keys:
            self._attached.end_input()
            return False
        leaves = False
        if self._sizes:
            keys, leaves = escape.passed(keys)
        if keys:
            self._attached.write(keys)
        if leaves:
            self._left.set()
            self._attached.close()
        return not leaves
