"""Figures, the table that shows them, and what a benchmark prints.

Standard output gets the table and nothing else. Whatever is logged or printed while measuring, by
the service under test or by a program that it starts, goes to files in :func:`log_folder`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median, quantiles


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure beside what it is held against, both measured in the same run."""

    name: str
    ours: str
    floor: str
    ratio: float | None
    target: str
    met: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """The figure as a line of the table."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}x"
        verdict = ("met" if self.met else "missed") if self.target else ""
        return (self.name, self.ours, self.floor, ratio, self.target, verdict)


Measure = Callable[[], Iterable[Figure]]


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that so many percent do not exceed: never more than the largest one.

    Without ``inclusive``, few values are taken for a part of many, and what lies beyond them all is
    guessed.
    """
    return quantiles(values, n=100, method="inclusive")[percent - 1]


PERCENTILES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "p50": median,
    "p99": partial(percentile, percent=99),
}

RESULTS = "SVC_BENCH_RESULTS"
"""Environment variable: a file that gets the figures of a run as JSON, beside the table."""
MAX_REASON = 500
HEADINGS = ("figure", "ours", "floor", "ratio", "target", "verdict")


def table(figures: Iterable[Figure]) -> str:
    """Return the figures as a Markdown table that can also be read as it is."""
    lines = [HEADINGS, *(figure.cells for figure in figures)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    rows = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rows.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(rows)


def report(measures: Mapping[str, Measure]) -> int:
    """Take all measurements, print the table and return the exit code.

    A missed target is a result, not a failure: 0. 1 means that something could not be measured;
    a line on standard error says what and why, and the table has the rest.
    """
    sys.stderr.write(f"Logs: {log_folder()}\n")
    figures: list[Figure] = []
    failures: list[str] = []
    with _output_to(log_folder() / "benchmark.log"):
        for name, measure in measures.items():
            try:
                for figure in measure():
                    figures.append(figure)  # what was measured before a failure is shown
            except Exception as error:
                traceback.print_exc()
                failures.append(f"Could not measure {name}: {_reason(error)}\n")
    if figures:
        sys.stdout.write(table(figures) + "\n")
        sys.stdout.flush()
    if results := os.environ.get(RESULTS):
        Path(results).write_text(json.dumps([asdict(figure) for figure in figures]))
    sys.stderr.writelines(failures)
    return int(bool(failures))


@cache
def log_folder() -> Path:
    """Return the folder for the logs of this run. It is kept, for whoever wants to read them."""
    return Path(tempfile.mkdtemp(prefix="svc-bench-logs-"))


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Send what this process and its children write to standard output and error to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    with path.open("ab") as file:
        for number in kept:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)


def _reason(error: Exception) -> str:
    """Return the error in one line; the log has its traceback."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:MAX_REASON] if text else type(error).__name__


def milliseconds(seconds: float) -> str:
    """Return a duration for people."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
