"""``make bench``: what it runs, what it writes down, and what it calls worse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.__main__ import GROUPS, PAGE, _that_fit, run_groups
from tests.bench.figures import Figure
from tests.bench.figures_page import Section, compared, machine, read_page, replaced, value_of
from tests.support.waiting import LONG_WAIT

PLACE = "<!-- figures: {} -->\n<!-- end of figures -->\n"
TEXT = f"# Figures\n\n{PLACE.format('machine')}\nWords.\n\n{PLACE.format('ssh')}\nMore words.\n"


def figure(name: str, ratio: float | None, *, ours: str = "3 ms", target: str = "<= 2x") -> Figure:
    return Figure(name, ours, "1 ms (by hand)", ratio, target, True)


def written(*runs: list[Figure]) -> str:
    return replaced(TEXT, {"ssh": Section(runs)}, "Measured here.")


def test_the_page_gets_its_tables_and_the_machine_and_the_words_around_them_stay() -> None:
    page = written([figure("logins", 1.5)])
    assert page.startswith("# Figures\n\n<!-- figures: machine -->\nMeasured here.\n<!-- end")
    assert "| logins | 3 ms | 1 ms (by hand) | 1.50x | | <= 2x | met |\n" in page
    assert page.count("ords.\n") == 2
    assert written([figure("logins", 1.5)]) == replaced(
        page, {"ssh": Section([[figure("logins", 1.5)]])}, "Measured here."
    )


def test_what_is_read_from_a_page_is_what_was_written_to_it() -> None:
    figures = [figure("logins", 1.5), figure("memory", None, ours="3 MiB", target="")]
    (first, second) = read_page(written(figures))["ssh"]
    assert first == figures[0]
    assert (second.name, second.ours, second.ratio) == ("memory", "3 MiB", None)


def test_the_run_in_the_middle_is_shown_and_the_spread_tells_the_others() -> None:
    runs = [[figure("logins", ratio)] for ratio in (3.0, 1.0, 2.0)]
    ((shown, spread),) = Section(runs).figures
    assert shown.ratio == 2.0
    assert spread == "1.00x to 3.00x, 3 runs"
    assert Section(runs[:1]).figures == [(figure("logins", 3.0), "")]


@pytest.mark.parametrize(
    ("target", "ours", "ratios", "worse"),
    [
        ("<= 2x", "3 ms", (1.0, 3.0), 3.0),
        ("<= 2x", "3 ms", (4.0, 1.0, 3.0, 2.0), 3.0),
        (">= 0.5x", "3 MB/s", (1.0, 3.0), 1.0),
        (">= 0.5x", "3 MB/s", (4.0, 1.0, 3.0, 2.0), 2.0),
        ("", "3 ms", (1.0, 3.0), 3.0),
        ("", "3 MB/s", (1.0, 3.0), 1.0),
    ],
)
def test_of_two_runs_in_the_middle_the_worse_is_shown(
    target: str, ours: str, ratios: tuple[float, ...], worse: float
) -> None:
    for order in (ratios, ratios[::-1]):
        runs = [[figure("logins", ratio, ours=ours, target=target)] for ratio in order]
        ((shown, _),) = Section(runs).figures
        assert shown.ratio == worse


def test_a_line_belongs_to_the_figure_above_it_in_every_run() -> None:
    run = [figure("out", 1.0), figure("  off", 2.0), figure("in", 3.0), figure("  off", 4.0)]
    section = Section([run, run])
    assert [shown.ratio for shown, _ in section.figures] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        (figure("logins, median of 20", 1.0), figure("logins, median of 10", 1.2), True),
        (figure("logins", 1.0), figure("logins", 1.1), False),
        (figure("logins", 1.2), figure("logins", 1.0), False),
        (figure("bulk", 1.0, target=">= 0.5x"), figure("bulk", 0.8, target=">= 0.5x"), True),
        (figure("bulk", 0.8, target=">= 0.5x"), figure("bulk", 1.0, target=">= 0.5x"), False),
        (figure("memory", None, ours="900 KiB"), figure("memory", None, ours="1.2 MiB"), True),
        (figure("lag", None, ours="0.9 s, p50 1 ms"), figure("lag", None, ours="950 ms"), False),
        (figure("logins", 1.0, target=""), figure("logins", 9.0, target=""), False),
        (figure("logins", None), figure("logins", 9.0), False),
        (figure("others", 1.0), figure("logins", 9.0), False),
    ],
)
def test_what_is_worse_by_more_than_15_percent_is_named(
    before: Figure, now: Figure, *, named: bool
) -> None:
    lines = list(compared({"ssh": [before]}, {"ssh": Section([[now]])}))
    assert bool(lines) == named
    if named and now.ratio:
        assert lines == [f"{now.name}: {before.ratio:.2f}x before, {now.ratio:.2f}x now"]


def test_figures_that_differ_in_a_number_or_stand_twice_are_lines_of_their_own() -> None:
    names = ["echo, p50", "the same, p99", "echo, p99", "the same, p99"]
    shown = Section([[figure(name, 1.0) for name in names]] * 2).figures
    assert [(one.name, spread) for one, spread in shown] == [
        (name, "1.00x to 1.00x, 2 runs") for name in names
    ]


def test_a_figure_is_compared_in_its_unit() -> None:
    assert value_of(figure("memory", None, ours="1,024 KiB")) == 2**20
    assert value_of(figure("lag", None, ours="12.5 ms (p50 3)")) == pytest.approx(0.0125)
    assert value_of(figure("rate", None, ours="none")) is None


def test_a_section_without_a_place_on_the_page_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the figures of record"):
        replaced(TEXT, {"record": Section([[figure("a", 1.0)]])}, "")


def test_the_page_of_this_project_has_a_place_for_every_group() -> None:
    assert set(read_page(PAGE.read_text())) == {"machine", *GROUPS}
    for arguments in GROUPS.values():
        assert (PAGE.parents[2] / f"{arguments[0].replace('.', '/')}.py").exists()
    assert str(os.cpu_count()) in machine()


def test_groups_run_again_while_there_is_time_and_one_that_fails_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = "import sys\nfrom pathlib import Path\nfrom tests.bench.figures import Figure, report\n"
    # It can be measured twice, so that its third run is the last, however quick the machine is.
    fine = (
        f"runs = Path({str(tmp_path / 'runs')!r})\n"
        "with runs.open('a') as file: file.write('.')\n"
        "measured = [Figure('a', '1 ms', '', None, '', True)]\n"
        "figures = measured if runs.stat().st_size < 3 else 1 / 0\n"
        "sys.exit(report({'it': lambda: figures}))\n"
    )
    (tmp_path / "fine_group.py").write_text(start + fine)
    (tmp_path / "broken_group.py").write_text(start + "sys.exit(report({'it': lambda: 1 / 0}))\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{PAGE.parents[2]}")
    groups = {"fine": ("fine_group",), "broken": ("broken_group",)}
    runs, failed = run_groups(groups, seconds=LONG_WAIT)
    assert failed == ["broken", "fine"]
    assert runs["broken"] == [[]]
    assert [[shown.name for shown in run] for run in runs["fine"]] == [["a"], ["a"], []]


def test_what_does_not_fit_into_the_time_that_is_left_is_not_run_again() -> None:
    took = {"long": 20.0, "short": 1.0, "middle": 5.0}
    assert _that_fit(list(took), took, 26.0) == ["short", "middle", "long"]
    assert _that_fit(list(took), took, 25.9) == ["short", "middle"]
    assert _that_fit(["long", "middle"], took, 4.9) == []


def test_a_group_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_group.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{PAGE.parents[2]}")
    assert run_groups({"slow": ("slow_group",)}, seconds=1) == ({"slow": [[]]}, ["slow"])


def test_a_group_for_which_no_time_is_left_is_named_and_not_started() -> None:
    assert run_groups({"none": ("no_such_group",)}, seconds=0) == ({"none": []}, ["none"])


def test_options_that_do_not_exist_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "everything"],
        cwd=PAGE.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "invalid choice: 'everything'" in done.stderr
