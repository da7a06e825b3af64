"""How the tests are shared out to processes, held without any."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.parallel import LONG_FIRST, TOGETHER, long_first, unit_of

ROOT = Path(__file__).resolve().parents[2]
BY_CHANCE = {"uuid1", "uuid4", "uuid7", "urandom", "token_hex", "token_urlsafe", "randrange"}


def test_a_file_is_a_unit_whatever_is_in_its_tests_names() -> None:
    assert unit_of("tests/a/test_b.py::test_c") == "tests/a/test_b.py"
    assert unit_of("tests/a/test_b.py::Class::test_c[x::y/z]") == "tests/a/test_b.py"
    assert unit_of("tests/chaosless/test_b.py::test_c[tests/chaos/]") == "tests/chaosless/test_b.py"


def test_everything_that_kills_real_services_is_one_unit() -> None:
    files = sorted((ROOT / "tests" / "chaos").glob("test_*.py"))
    units = {unit_of(f"{path.relative_to(ROOT)}::test_it") for path in files}
    assert len(files) > 10
    assert units == {"tests/chaos/"}


def test_what_takes_long_begins_first_and_then_what_has_more_tests() -> None:
    many = [f"tests/a/test_many.py::test_{number}" for number in range(3)]
    order = long_first(
        [
            "tests/a/test_few.py::test_1",
            *many,
            "tests/e2e/test_one.py::test_1",
            "tests/chaos/test_one.py::test_1",
            "tests/chaos/test_two.py::test_1",
        ]
    )
    assert order == [
        "tests/chaos/",
        "tests/e2e/test_one.py",
        "tests/a/test_many.py",
        "tests/a/test_few.py",
    ]


def test_all_that_is_named_exists() -> None:
    named = {*TOGETHER, *LONG_FIRST}
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    assert [start for start in named if not any(file.startswith(start) for file in files)] == []


def test_the_names_of_tests_are_the_same_in_every_process() -> None:
    """The processes would not agree on what there is to run, and nothing would be run."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("parametrize"):
                words = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                words |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                if words & BY_CHANCE and not any(word.arg == "ids" for word in node.keywords):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []
