"""What `make test` makes of tests that fail: run for real, in a folder of a few made tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import FEW, Run, summary_of

ROOT = Path(__file__).resolve().parents[2]
FAILS_UNTIL = """\
from pathlib import Path

def attempt(name):
    path = Path(__file__).with_name(name)
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    return len(path.read_text())

def test_sound():
    pass

def test_fails_at_first():
    assert attempt("ran") > {times}
"""


def suite(folder: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the suite of one file with two processes and short pauses."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (folder / "test_made.py").write_text(test)
    no = [word for name in ("django", "hypothesispytest") for word in ("-p", f"no:{name}")]
    own = ("PYTEST_", "COV_", "DJANGO_")
    return subprocess.run(
        [sys.executable, "-m", "tests.suite", "-n", "2", "--reruns-delay", "0", *no, *options],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(own)},
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that it printed."""
    return done.stdout.splitlines()[-1]


def test_a_test_that_passes_on_its_third_attempt_is_counted_and_named(tmp_path: Path) -> None:
    done = suite(tmp_path, FAILS_UNTIL.format(times=2))
    assert done.returncode == 0, done.stdout
    assert "2 passed, 2 rerun in" in last_line(done)
    assert "RERUN test_made.py::test_fails_at_first" in done.stdout
    assert "alone" not in done.stdout


def test_what_failed_three_times_is_tried_once_more_alone(tmp_path: Path) -> None:
    done = suite(tmp_path, FAILS_UNTIL.format(times=3))
    assert done.returncode == 0, done.stdout
    first, _, second = last_line(done).partition(" then, alone: ")
    assert "1 failed, 1 passed, 2 rerun in" in first
    assert "1 passed in" in second
    assert (tmp_path / "ran").read_text() == "xxxx"


def test_what_fails_alone_too_has_failed(tmp_path: Path) -> None:
    done = suite(tmp_path, FAILS_UNTIL.format(times=4))
    assert done.returncode == 1, done.stdout
    first, _, second = last_line(done).partition(" then, alone: ")
    assert "1 failed, 1 passed, 2 rerun in" in first
    assert "1 failed in" in second
    assert (tmp_path / "ran").read_text() == "xxxx"


def test_a_warning_is_an_error_in_every_process(tmp_path: Path) -> None:
    done = suite(tmp_path, "import warnings\n\ndef test_it():\n    warnings.warn('old')\n")
    assert done.returncode == 1, done.stdout
    assert "UserWarning: old" in done.stdout


@pytest.mark.parametrize("broken", ["import nothing_of_this_name\n", "def test_it(:\n"])
def test_what_cannot_be_read_gets_no_second_chance(tmp_path: Path, broken: str) -> None:
    done = suite(tmp_path, broken)
    assert done.returncode != 0, done.stdout
    assert "1 error in" in last_line(done)
    assert "alone" not in done.stdout


def test_more_than_a_few_failures_get_no_second_chance(tmp_path: Path) -> None:
    many = "".join(f"def test_{number}():\n    assert 0\n" for number in range(FEW + 1))
    done = suite(tmp_path, many, "--reruns", "0")
    assert done.returncode == 1
    assert f"{FEW + 1} failed in" in last_line(done)
    assert "alone" not in done.stdout


def test_a_process_that_dies_fails_the_test_that_it_ran(tmp_path: Path) -> None:
    done = suite(tmp_path, "import os\n\ndef test_it():\n    os._exit(9)\n")
    assert done.returncode != 0, done.stdout
    assert "crashed while running 'test_made.py::test_it'" in done.stdout


def test_what_a_process_that_dies_had_left_is_run_by_others(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.parallel import UnitScheduling\n\n"
        "def pytest_xdist_make_scheduler(config, log):\n"
        "    return UnitScheduling(config, log)\n"
    )
    for number in range(6):
        tests = "".join(f"def test_{each}():\n    pass\n" for each in range(6))
        (tmp_path / f"test_other_{number}.py").write_text(tests)
    dies_once = (
        "import os\nfrom pathlib import Path\n\n"
        "def test_before():\n    pass\n\n"
        "def test_it():\n    died = Path(__file__).with_name('died')\n"
        "    if not died.exists():\n        died.touch()\n        os._exit(9)\n\n"
        "def test_after():\n    pass\n"
    )
    done = suite(tmp_path, dies_once, "--reruns", "0")
    assert done.returncode == 0, done.stdout
    first, _, second = last_line(done).partition(" then, alone: ")
    assert "1 failed, 38 passed in" in first
    assert "1 passed in" in second


@pytest.mark.parametrize(
    ("code", "failed", "deserved"),
    [
        (1, ("tests/a.py::test_b",), True),
        (0, (), False),
        (1, (), False),
        (2, ("tests/a.py::test_b",), False),
        (3, ("tests/a.py::test_b",), False),
        (1, ("tests/a.py::test_b", "tests/b.py"), False),
        (1, tuple(f"tests/a.py::test_{number}" for number in range(FEW)), True),
        (1, tuple(f"tests/a.py::test_{number}" for number in range(FEW + 1)), False),
    ],
    ids=str,
)
def test_only_a_few_failed_tests_and_nothing_else_get_a_second_chance(
    code: int, failed: tuple[str, ...], deserved: bool
) -> None:
    assert Run(code, "", failed).deserves_another is deserved


@pytest.mark.parametrize(
    "line",
    [
        "===== 2 failed, 5479 passed, 3 rerun in 1800.11s (0:30:00) =====",
        "5 passed in 0.10s",
        "====== 1 error in 0.44s ======",
        "==== no tests ran in 0.01s ====",
        "== 1 failed, 2 passed, 1 skipped, 3 deselected, 1 xfailed, 2 warnings, 1 error in 2.1s ==",
    ],
)
def test_the_summary_is_found_among_what_is_printed(line: str) -> None:
    assert summary_of(f"=== FAILURES ===\n5 passed in words\n\x1b[31m{line}\x1b[0m\nmore\n") == line


def test_there_is_no_summary_where_none_was_printed() -> None:
    assert summary_of("INTERNALERROR> 5 passed\nin 3 s\n") == ""
