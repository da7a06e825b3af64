"""``make bench``: run every benchmark, write its figures down, and name what became worse.

Not a test. Each group is a process of its own, and is run again as long as its last run would fit
in what is left of the time. A figure's line shows the run in the middle, of two the worse, and how
far the others were from it. ``docs/developers/figures.md`` is written only where its markers are;
the text around them stays. Figures are read from the page before it is written, so what is
committed is the comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.figures import RESULTS, Figure, log_folder
from tests.bench.figures_page import Section, compared, machine, read_page, replaced

PAGE = Path(__file__).resolve().parents[2] / "docs" / "developers" / "figures.md"
GROUPS: Mapping[str, Sequence[str]] = {
    "builds": ("tests.bench.builds", "--quick"),
    "record": ("tests.bench.record",),
    "ssh": ("tests.bench.ssh", "--quick"),
    "packages": ("tests.bench.packages",),
    "operate": ("tests.bench.operate",),
    "density": ("tests.bench.density", "--number", "20"),
    "volume": ("tests.bench.volume",),
    "data-plane": ("tests.bench.data_plane", "--quick"),
    "egress": ("tests.bench.egress",),
    "cluster": ("tests.bench.cluster", "--drops", "100"),
    "recovery": ("tests.bench.recovery", "--kills", "50"),
}
"""What is run for each section of the page; what takes long on a slow machine stands last, so that
it is that which the time is not enough for."""
MINUTES = 25.0
STOP_SECONDS = 120.0


def main() -> int:
    """Measure, write the page and return the exit code: 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*GROUPS, []], help="measure these only")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time for all of it")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page that is written")
    options = parser.parse_args()
    # A shell that starts this in the background has it ignored, by the groups as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = read_page(options.page.read_text())
    chosen = {name: GROUPS[name] for name in options.only or GROUPS}
    runs, failed = run_groups(chosen, seconds=options.minutes * 60)
    sections = {name: Section(rounds) for name, rounds in runs.items() if any(rounds)}
    options.page.write_text(replaced(options.page.read_text(), sections, machine()))
    for section in sections.values():
        sys.stdout.write(section.table() + "\n\n")
    for line in compared(before, sections):
        sys.stdout.write(f"Worse: {line}\n")
    for name in failed:
        sys.stderr.write(f"Could not measure all of {name}: {log_folder() / name}.log says why\n")
    return int(bool(failed))


def run_groups(
    groups: Mapping[str, Sequence[str]], *, seconds: float
) -> tuple[dict[str, list[list[Figure]]], list[str]]:
    """Run each group once, and in turn again while there is time.

    Returns the figures of each run of each group, and the groups that could not measure everything.
    """
    deadline = time.monotonic() + seconds
    runs: dict[str, list[list[Figure]]] = {name: [] for name in groups}
    failed: dict[str, None] = {}
    took: dict[str, float] = {}
    waiting = list(groups)
    while waiting:
        for name in waiting:
            started = time.monotonic()
            if started >= deadline:
                sys.stderr.write(f"{name}: no time is left\n")
                failed[name] = None
                continue
            sys.stderr.write(f"{name}: run {len(runs[name]) + 1}\n")
            figures, code = _run(name, groups[name], deadline - started)
            took[name] = time.monotonic() - started
            runs[name].append(figures)
            if code:
                failed[name] = None
        left = deadline - time.monotonic()
        waiting = _that_fit([name for name in waiting if name not in failed], took, left)
    return runs, list(failed)


def _that_fit(names: Sequence[str], took: Mapping[str, float], left: float) -> list[str]:
    """Return the groups that can all be run again, the shortest first."""
    fit = []
    for name in sorted(names, key=took.__getitem__):
        left -= took[name]
        if left < 0:
            break
        fit.append(name)
    return fit


def _run(name: str, arguments: Sequence[str], seconds: float) -> tuple[list[Figure], int]:
    """Run one group and return its figures and exit code; it is ended when the time is over."""
    with (
        tempfile.TemporaryDirectory() as folder,
        (log_folder() / f"{name}.log").open("ab") as log,
    ):
        results = Path(folder) / "figures.json"
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, RESULTS: str(results)},
        )
        try:
            code = process.wait(timeout=max(seconds, 1.0))
        except subprocess.TimeoutExpired:
            log.write(b"The time was over.\n")
            code = 1
        finally:
            _end(process)
        if not results.exists():
            return [], code or 1
        return [Figure(**members) for members in json.loads(results.read_text())], code


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a group that still runs, with what it has started if it can."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
