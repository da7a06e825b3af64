"""Runs the tests as CI does: ``python -m tests.suite [options of pytest]``.

Several processes share the tests (``tests/parallel.py``), and a test that fails is run again up to
twice, after a pause. Tests that failed every time get one second chance when all others are
through: alone, one after the other, each once. What failed there too has failed. Nothing is
hidden: the summaries of both runs are printed, and they count and name what was run again.

There is no second chance when more than :data:`FEW` failed or when something other than a test
did: that is no accident.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

PROCESSES = 3
"""On two cores: much of what the tests do is waiting for real services."""
FEW = 25
MOST_SECONDS = 80 * 60.0
"""A run that takes longer is ended; a single test has its own limit (pyproject.toml)."""

SHARED = ("-n", str(PROCESSES), "--reruns", "2", "--reruns-delay", "3", "-raR")
ALONE = ("-n", "0", "--reruns", "0", "--last-failed", "--last-failed-no-failures", "none")

_SUMMARY = re.compile(
    r"=* ?((?:\d+ (?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|rerun|warnings?)"
    r"(?:, )?)+|no tests ran) in [\d.]+s(?: \([\d:]+\))? ?=*"
)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True, slots=True)
class Run:
    """How one run of pytest ended."""

    code: int
    summary: str
    """Its last line; empty when it printed none."""
    failed: tuple[str, ...]
    """What failed in it, as pytest remembers it: tests, or files that could not be read."""

    @property
    def deserves_another(self) -> bool:
        """True when a few tests failed and nothing else went wrong."""
        only_tests = all("::" in nodeid for nodeid in self.failed)
        return self.code == 1 and 0 < len(self.failed) <= FEW and only_tests


def main(options: list[str]) -> int:
    """Run the tests and print the summaries last; the exit code is 0 when all passed in the end."""
    # A shell that starts this in the background has it ignored, and tests interrupt programs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="svc-suite-") as cache:
        first = run([*SHARED, *options], Path(cache))
        if not first.deserves_another:
            _say(first.summary or "The tests did not come to an end.")
            return first.code
        count = len(first.failed)
        _say(f"Once more, alone: what failed ({count}).", *first.failed)
        second = run([*SHARED, *options, *ALONE], Path(cache))
        _say(f"{first.summary} then, alone: {second.summary or 'it did not come to an end'}")
        return second.code or int(bool(second.failed))


def run(options: list[str], cache: Path) -> Run:
    """Run pytest with what it remembers in ``cache``, and show what it prints."""
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *colour, *options]
    # The processes have to agree on the tests and their order, also where a set lists them.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    timer = threading.Timer(MOST_SECONDS, process.send_signal, [signal.SIGINT])
    timer.start()
    try:
        printed = _show(process)
        code = process.wait()
    except KeyboardInterrupt:
        code = process.wait()  # it was interrupted as well
        raise SystemExit(code) from None
    finally:
        timer.cancel()
    return Run(code, summary_of(printed), _remembered(cache))


def summary_of(printed: str) -> str:
    """Return the last line that is a summary of pytest, without colours; empty without one."""
    lines = [_COLOUR.sub("", line).strip() for line in printed.splitlines()]
    return next((line for line in reversed(lines) if _SUMMARY.fullmatch(line)), "")


def _show(process: subprocess.Popen[bytes]) -> str:
    """Pass on what it prints as it comes; return the end of it."""
    assert process.stdout is not None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    end = ""
    while chunk := os.read(process.stdout.fileno(), 65_536):
        text = decoder.decode(chunk)
        sys.stdout.write(text)
        sys.stdout.flush()
        end = (end + text)[-20_000:]
    return end


def _say(*lines: str) -> None:
    sys.stdout.write("\n" + "\n  ".join(lines) + "\n")
    sys.stdout.flush()


def _remembered(cache: Path) -> tuple[str, ...]:
    try:
        failed = json.loads((cache / "v" / "cache" / "lastfailed").read_text())
    except OSError:
        return ()
    return tuple(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
