"""What the set-up is doing now and how long it took: lively on a terminal, plain in a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_TITLE_WIDTH = 18
_TICK_SECONDS = 0.15
_REMINDER_SECONDS = 30.0


class Step:
    """One step under way. `now` says what happens at the moment, `done` what came of it."""

    def __init__(self, title: str, say: Progress) -> None:
        self.title = title
        self.outcome = ""
        self.doing = ""
        self.since = time.monotonic()
        self._say = say

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    def now(self, doing: str) -> None:
        """Say what happens at the moment."""
        self.doing = doing
        self._say.announce(self)

    def done(self, outcome: str) -> None:
        """Say what came of the step; printed when it ends."""
        self.outcome = outcome


class Progress:
    """Prints steps. A terminal shows the running one in place with its time; elsewhere each change
    is a line of its own, and a long step says now and then that it is still at work."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._lively = self._out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._colour = self._lively and "NO_COLOR" not in os.environ
        encoding = (getattr(self._out, "encoding", "") or "").lower().replace("-", "")
        self._marks = ("✓", "✗", "…") if encoding == "utf8" else ("ok", "FAILED", "...")
        self._lock = threading.Lock()
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the whole has taken so far."""
        return time.monotonic() - self._started

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step while the block runs; a step that raises is marked as failed."""
        step = Step(title, self)
        stop = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(step, stop), daemon=True)
        ticker.start()
        failed = True
        try:
            yield step
            failed = False
        finally:
            stop.set()
            ticker.join()
            mark, code = (self._marks[1], "31") if failed else (self._marks[0], "32")
            outcome = step.outcome if not failed else step.doing
            self._line(mark, code, step, outcome)

    def note(self, text: str) -> None:
        """Print a remark between steps."""
        with self._lock:
            self._out.write(f"{text}\n")
            self._out.flush()

    def announce(self, step: Step) -> None:
        """A running step does something new."""
        if not self._lively:
            self._line(self._marks[2], "2", step, step.doing, with_time=False)

    def _tick(self, step: Step, stop: threading.Event) -> None:
        interval = _TICK_SECONDS if self._lively else _REMINDER_SECONDS
        while not stop.wait(interval):
            if self._lively:
                self._rewrite(step)
            else:
                self._line(self._marks[2], "2", step, "still working")

    def _rewrite(self, step: Step) -> None:
        width = os.get_terminal_size(self._out.fileno()).columns if self._out.isatty() else 80
        text = f"  {self._marks[2]} {step.title:<{_TITLE_WIDTH}} {step.doing} {step.seconds:.0f} s"
        with self._lock:
            self._out.write(f"\r\x1b[2K{text[: max(20, width - 1)]}")
            self._out.flush()

    def _line(self, mark: str, code: str, step: Step, text: str, *, with_time: bool = True) -> None:
        coloured = f"\x1b[{code}m{mark}\x1b[0m" if self._colour else mark
        time_text = f"  ({step.seconds:.1f} s)" if with_time else ""
        clear = "\r\x1b[2K" if self._lively else ""
        with self._lock:
            self._out.write(f"{clear}  {coloured} {step.title:<{_TITLE_WIDTH}} {text}{time_text}\n")
            self._out.flush()
