"""What a benchmark prints and how it exits, whatever it measures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.beside import beside
from tests.bench.figures import PERCENTILES, percentile
from tests.bench.volume import against_first
from tests.support.waiting import LONG_WAIT

ROOT = Path(__file__).resolve().parents[2]
START = """\
import subprocess, sys
from tests.bench.figures import Figure, report

def figure(name, met):
    return Figure(name, "3 ms", "1 ms (by hand)", 3.0, "<= 2x", met)
"""


def bench(folder: Path, measures: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark whose logs come to lie in ``folder``."""
    return subprocess.run(
        [sys.executable, "-c", START + measures],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_WAIT,
    )


def logs(folder: Path) -> Path:
    """Return the one folder that was made for logs."""
    (made,) = folder.iterdir()
    return made


def test_a_missed_target_is_a_result_and_not_a_failure(tmp_path: Path) -> None:
    done = bench(
        tmp_path,
        "sys.exit(report({'it': lambda: [figure('slow', False), figure('quick', True)]}))",
    )
    assert (done.returncode, done.stderr) == (0, f"Logs: {logs(tmp_path)}\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    assert rows[0] == ["figure", "ours", "floor", "ratio", "target", "verdict"]
    assert rows[2:] == [
        ["slow", "3 ms", "1 ms (by hand)", "3.00x", "<= 2x", "missed"],
        ["quick", "3 ms", "1 ms (by hand)", "3.00x", "<= 2x", "met"],
    ]


def test_what_is_logged_while_measuring_goes_to_a_file(tmp_path: Path) -> None:
    done = bench(
        tmp_path,
        """
def measure():
    print("printed")
    sys.stderr.write("logged\\n")
    subprocess.run(["sh", "-c", "echo by a program; echo its error >&2"], check=True)
    return [figure("one", True)]

sys.exit(report({"it": measure}))
""",
    )
    assert done.returncode == 0
    assert [line[:1] for line in done.stdout.splitlines()] == ["|", "|", "|"]
    assert done.stderr == f"Logs: {logs(tmp_path)}\n"
    log = (logs(tmp_path) / "benchmark.log").read_text()
    assert sorted(log.splitlines()) == ["by a program", "its error", "logged", "printed"]


def test_what_could_not_be_measured_is_a_failure_and_the_rest_is_shown(tmp_path: Path) -> None:
    done = bench(
        tmp_path,
        """
def broken():
    yield figure("before", True)
    raise RuntimeError("pgbench failed:\\nand much more")

sys.exit(report({"jobs": broken, "reading": lambda: [figure("after", True)]}))
""",
    )
    assert done.returncode == 1
    assert [line.split()[1] for line in done.stdout.splitlines()[2:]] == ["before", "after"]
    assert done.stderr.splitlines()[1:] == [
        "Could not measure jobs: RuntimeError: pgbench failed: and much more"
    ]
    log = (logs(tmp_path) / "benchmark.log").read_text()
    assert "Traceback" in log


def test_without_any_figure_there_is_no_table(tmp_path: Path) -> None:
    done = bench(tmp_path, "sys.exit(report({'it': lambda: 1 / 0}))")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1:] == [
        "Could not measure it: ZeroDivisionError: division by zero"
    ]


def test_a_percentile_is_never_above_the_largest_value() -> None:
    few = [1.0, 2.0, 10.0]
    assert percentile(few, 99) == pytest.approx(9.84)
    assert all(of(few) <= 10.0 for of in PERCENTILES.values())
    whole = [float(number) for number in range(101)]
    assert [percentile(whole, percent) for percent in (1, 50, 95, 99)] == [1, 50, 95, 99]


def test_a_later_page_may_take_so_many_times_what_the_first_one_takes() -> None:
    met, missed = (against_first([later] * 3, [0.010] * 3) for later in (0.013, 0.0131))
    assert met.cells[1:] == ("13.0 ms", "10.0 ms page 1", "1.30x", "<= 1.3x", "met")
    assert missed.cells[-2:] == ("<= 1.3x", "missed")


def test_a_measure_beside_builds_begins_once_all_run_and_is_void_when_one_ends_before_it() -> None:
    asked = 0

    def running() -> set[str]:
        nonlocal asked
        asked += 1
        return {"one", "two", "three"} if asked >= 3 else {"one"}

    with beside(running, 3, what="builds"):
        assert asked >= 3
    builds = {"one", "two", "three"}

    def measure_while_one_is_replaced() -> None:
        with beside(lambda: set(builds), 3, what="builds"):
            builds.remove("two")
            builds.add("another")

    with pytest.raises(RuntimeError, match="1 of 3 builds ended while something was measured"):
        measure_while_one_is_replaced()
