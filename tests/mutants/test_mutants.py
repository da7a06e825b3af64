"""The mutation tests report what they should, on a made-up module."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import connection

from tests.mutants.__main__ import ROOT, equivalent, is_equivalent, measure
from tests.mutants.changes import Change, changes_of
from tests.mutants.groups import GROUPS
from tests.mutants.statements import changes_of_statement

MODULE = "madeup/limits.py"
SOURCE = '''"""A module with a promise."""

LIMIT = 3


def within(value: int) -> bool:
    """Whether a value is allowed."""
    return 0 <= value <= LIMIT


def rounded(value: int) -> int:
    """Nobody tests where this begins."""
    return value + 1 if value > 10 else value


if __name__ == "__main__":
    print(within(3))
'''
TESTS = """
import subprocess, sys
from madeup.limits import rounded, within

def test_the_limits_are_allowed():
    assert [within(value) for value in (-1, 0, 3, 4)] == [False, True, True, False]

def test_far_from_where_it_begins():
    assert (rounded(0), rounded(20)) == (0, 21)

def test_a_program_has_the_limit():
    said = subprocess.run([sys.executable, "-m", "madeup.limits"], capture_output=True).stdout
    assert said == b"True\\n"
"""

ROWS = """
import pytest
from django.utils.timezone import now
from controlplane.work.models import Heartbeat
from madeup.limits import within

@pytest.mark.django_db(transaction=True)
def test_it():
    given = {"kind": "run", "hostname": "h", "pid": 1, "capacity": 1, "seen_at": now()}
    Heartbeat.objects.create(worker_id="first", **given)
    assert within(Heartbeat.objects.count())
    assert Heartbeat.objects.count() == 1
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one module and its tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    files = {MODULE: SOURCE, "madeup/__init__.py": "", "test_limits.py": TESTS}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def _measured(
    tree: Path, changes: list[Change], tests: str = "test_limits.py"
) -> list[dict[str, Any]]:
    return list(measure(tree, changes, (tests,)))


def test_a_change_that_a_test_notices_is_caught_and_another_one_survives(tree: Path) -> None:
    of_module = changes_of(MODULE, SOURCE.encode())
    changes = [change for change in of_module if change.function or change.before == "3"][:-1]
    unchanged, *results = _measured(tree, changes)
    assert (unchanged["tests"], unchanged["failed"]) == (3, [])
    survived = [
        (change.function, change.after)
        for change, result in zip(changes, results, strict=True)
        if result["verdict"] == "survived"
    ]
    assert survived == [("rounded", "(value >= 10)"), ("rounded", "(11)")]
    # In a function, and where only a process that imports the module anew can see it.
    assert {change.function for change in changes} >= {"within", "rounded", ""}
    assert (tree / MODULE).read_text() == SOURCE


def test_programs_that_tests_start_run_the_changed_module(tree: Path) -> None:
    changes = [
        change
        for change in changes_of(MODULE, SOURCE.encode())
        if change.line > 15 and change.before == "3"
    ]
    _, result = _measured(tree, changes, "test_limits.py::test_a_program_has_the_limit")
    assert result["verdict"] == "caught"


def test_a_function_is_changed_where_it_is_loaded_though_its_process_has_frozen_its_objects(
    tree: Path,
) -> None:
    imports = tree / "imports"
    (tree / MODULE).write_text(f"open({str(imports)!r}, 'a').write('x')\n" + SOURCE)
    (tree / "conftest.py").write_text(
        "import gc\n\ndef pytest_collection_finish():\n    gc.freeze()\n"
    )
    changes = changes_of(MODULE, (tree / MODULE).read_bytes())
    inside = [change for change in changes if change.function == "within"]
    tests = "test_limits.py::test_the_limits_are_allowed"
    _, *results = _measured(tree, inside, tests)
    assert {result["verdict"] for result in results} == {"caught"}
    assert imports.read_text() == "x"


def test_the_tests_that_run_a_changed_line_come_before_all_others(tree: Path) -> None:
    ran = tree / "ran"
    (tree / "test_limits.py").write_text(
        f"def note(text):\n    open({str(ran)!r}, 'a').write(text)\n"
        "from madeup.limits import rounded, within\n"
        "def test_first():\n    note('1'), within(5)\n"
        "def test_second():\n    note('2')\n"
        "def test_third():\n    note('3')\n    assert rounded(10) == 10\n"
    )
    changes = changes_of(MODULE, SOURCE.encode())
    [change] = [each for each in changes if each.after == "(value >= 10)"]
    unchanged, result = _measured(tree, [change])
    assert (unchanged["tests"], result["by"]) == (3, ["test_limits.py::test_third"])
    # Twice unchanged, then the one that notices it.
    assert ran.read_text() == "123" * 2 + "3"


def test_each_condition_lock_and_assignment_of_a_statement_is_left_out_alone() -> None:
    write = """
        UPDATE job SET
            worker = %(worker)s,
            lease = NULL
        WHERE id = %s AND state IN ('queued', 'lost') AND lease IS NULL AND (a OR b < %(most)s)
    """
    assert _left_out(write) == {
        "worker = %(worker)s,": "",
        "AND state IN ('queued', 'lost')": "",
        "AND lease IS NULL": "",
        "AND (a OR b < %(most)s)": "",
        "OR b < %(most)s": "",
        "'queued',": "",
        ", 'lost'": "",
        "IS NULL": "IS NOT NULL",
        "<": " <= ",
    }
    assert _left_out("SELECT id FROM job WHERE state <> 1 LIMIT 1 FOR UPDATE SKIP LOCKED") == {
        "WHERE state <> 1": "",
        "<>": "=",
        "FOR UPDATE SKIP LOCKED": "",
        "SKIP LOCKED": "",
    }
    assert list(changes_of_statement("Nobody has WHERE a AND b.")) == []


def _left_out(statement: str) -> dict[str, str]:
    """What comes in the place of what, without the spaces around it."""
    found = changes_of_statement(statement)
    return {statement[start:end].strip(): other for start, end, other in found}


def test_a_statement_is_changed_where_it_stands(tree: Path) -> None:
    source = 'import os\n_ASK = "SELECT 1 WHERE a AND b"\ndef ask():\n    return _ASK\n'
    (tree / MODULE).write_text(source)
    (tree / "test_limits.py").write_text(
        "from madeup.limits import ask\ndef test_it():\n    assert ask().endswith(' b')\n"
    )
    changes = changes_of(MODULE, source.encode())
    named = {(change.line, change.before): change for change in changes}
    _, first, last = _measured(tree, [named[2, "a AND "], named[2, " AND b"]])
    assert (first["verdict"], last["verdict"]) == ("survived", "caught")


def test_a_change_that_ends_the_process_of_the_tests_is_caught(tree: Path) -> None:
    (tree / MODULE).write_text("import os\n" + SOURCE)
    where = (tree / MODULE).read_text().index("return 0 <=")
    ended = Change(MODULE, 9, "within", where, where, "", "os.abort(); ")
    _, result = _measured(tree, [ended])
    assert result["verdict"] == "caught"


def test_tests_that_fail_unchanged_are_no_measure(tree: Path) -> None:
    (tree / "test_limits.py").write_text("def test_nothing():\n    assert False\n")
    results = _measured(tree, changes_of(MODULE, SOURCE.encode()))
    assert [result["failed"] for result in results] == [["test_limits.py::test_nothing"]]


def test_tests_that_pass_only_once_are_no_measure(tree: Path) -> None:
    (tree / "test_limits.py").write_text(
        "from pathlib import Path\ndef test_it():\n    Path('made').touch(exist_ok=False)\n"
    )
    changes = changes_of(MODULE, SOURCE.encode())
    assert {bool(change.function) for change in changes} == {True, False}
    results = _measured(tree, changes)
    assert [result["failed"] for result in results] == [["test_limits.py::test_it"] * 2]


@pytest.mark.django_db(transaction=True)
def test_one_database_serves_all_changes_and_is_empty_whatever_another_one_has_left(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"mutants_{uuid4().hex}"
    monkeypatch.setenv("DATABASE_URL", urlsplit(settings.DATABASE_URL)._replace(path=name).geturl())
    (tree / MODULE).write_text("import os\n" + SOURCE)
    (tree / "conftest.py").write_text("from tests.conftest import django_db_setup\n")
    (tree / "test_limits.py").write_text(ROWS)
    where = (tree / MODULE).read_text().index("return 0 <=")
    ends = Change(MODULE, 9, "within", where, where, "", "os.abort(); ")
    nothing = Change(MODULE, 9, "within", where, where, "", "pass; ")
    at_import = Change(MODULE, 1, "", 0, 0, "", "import sys\n")
    try:
        unchanged, *results = _measured(tree, [ends, nothing, ends, at_import])
    finally:
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS test_{name} WITH (FORCE)")
    assert (unchanged["tests"], unchanged["failed"]) == (1, [])
    verdicts = [result["verdict"] for result in results]
    assert verdicts == ["caught", "survived", "caught", "survived"]


@pytest.mark.parametrize("group", GROUPS)
def test_what_a_group_names_is_there(group: str) -> None:
    named = [*GROUPS[group].modules, *GROUPS[group].tests]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_what_is_listed_as_equivalent_is_a_change_and_has_a_reason() -> None:
    entries = equivalent()
    modules = {entry["module"] for entry in entries}
    changes = {name: changes_of(name, (ROOT / name).read_bytes()) for name in modules}
    for entry in entries:
        assert any(is_equivalent(each, [entry]) for each in changes[entry["module"]]), entry
        assert entry["reason"]
