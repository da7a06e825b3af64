"""The agent's command line: what it takes, what it refuses, and what it says of itself."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from runs.agent.arguments import Member, Refused, Subcommand, read
from tests.runs.agent.booted import PYTHON, Workspace


def _sequence(text: str) -> int:
    if int(text) < 1:
        raise Refused("counts from 1")
    return int(text)


MEMBERS = (
    Member("--state-dir", "/state"),
    Member("run"),
    Member("--from", 1, convert=_sequence, destination="start"),
    Member("--reason", choices=("stop", "timeout")),
    Member("--port", required=True, convert=int),
)
SUBCOMMANDS = {
    "tail": Subcommand("read a record", lambda options: 7, MEMBERS),
    "runs": Subcommand("list them", lambda options: 0, ()),
}


def _read(*given: str) -> SimpleNamespace:
    return read(list(given), SUBCOMMANDS)[1]


def test_options_are_taken_before_and_after_places_and_behind_an_equals_sign() -> None:
    expected = SimpleNamespace(state_dir="/a=b", run="one", start=3, reason=None, port=-1)
    assert _read("tail", "--port", "-1", "one", "--from=3", "--state-dir=/a=b") == expected
    assert _read("tail", "--state-dir", "/a=b", "--from", "3", "one", "--port=-1") == expected


def test_the_subcommand_comes_with_its_options() -> None:
    subcommand, options = read(["runs"], SUBCOMMANDS)
    assert (subcommand, options) == (SUBCOMMANDS["runs"], SimpleNamespace())


def test_an_option_that_is_given_twice_counts_as_given_last() -> None:
    assert _read("tail", "one", "--port=1", "--port=2").port == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "the subcommand must be one of tail, runs"),
        (("none",), "the subcommand must be one of tail, runs"),
        (("--port", "tail"), "the subcommand must be one of tail, runs"),
        (("tail", "--port=1"), "tail: these are missing: run"),
        (("tail",), "tail: these are missing: run, --port"),
        (("tail", "one", "--port"), "tail: --port takes a value"),
        (("tail", "one", "--port=x"), "tail: --port has an invalid value"),
        (("tail", "one", "--port=1", "--from=0"), "tail: --from counts from 1"),
        (("tail", "one", "--port=1", "--reason=x"), "tail: --reason must be one of stop, timeout"),
        (("tail", "one", "two", "--port=1"), "tail: unexpected argument: two"),
        (("tail", "one", "--po=1"), "tail: there is no option --po"),
        (("tail", "-x", "one"), "tail: there is no option -x"),
        (("runs", "--from=1"), "runs: there is no option --from"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    given: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _read(*given)
    assert (ended.value.code, capsys.readouterr().err) == (2, f"agent: {told}\n")


def test_help_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _read("--help")
    all_of_it = capsys.readouterr().out
    with pytest.raises(SystemExit):
        _read("tail", "one", "-h")
    assert ended.value.code == 0
    line = "agent tail [--state-dir STATE_DIR] <run> [--from START] [--reason stop|timeout]"
    assert all_of_it.startswith(f"{line} --port PORT\n    read a record\n")
    assert all_of_it.endswith("agent runs\n    list them\n")
    assert capsys.readouterr().out == all_of_it.partition("agent runs")[0]


def test_the_archive_writes_all_of_an_answer_and_ends_with_its_code(workspace: Workspace) -> None:
    # It ends without taking the interpreter apart, which would otherwise have written the rest.
    def ended(*arguments: str) -> tuple[int, str, str]:
        argv = [PYTHON, "-IS", str(workspace.archive), *arguments]
        told = subprocess.run(argv, capture_output=True, text=True, check=False)
        return told.returncode, told.stdout, told.stderr

    runs = workspace.state / "runs"
    runs.mkdir(parents=True)
    state = ("--state-dir", str(workspace.state))
    assert ended("runs", *state)[0] == 0
    assert ended("status", *state)[1].endswith("}\n")
    unknown = ended("stop", "none", *state)
    assert unknown[0] == 4
    assert unknown[2].startswith("agent: the run none is not open")
    assert ended("stop", "../none")[0] == 2
    assert ended("no-such")[0] == 2
    assert not Path(runs, "none").exists()
