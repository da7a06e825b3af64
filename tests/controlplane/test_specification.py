"""The specification, the code and what is written about both say the same.

``specification.toml`` is the specification as data. The other way round it is the code that is
read: its routes, its settings, its commands, and every code that it can send (``codes.py``).
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands
from django.urls import URLPattern, URLResolver, get_resolver, resolve

from tests.controlplane.codes import APPS, Codes, field_codes, literals
from tests.controlplane.test_settings import load

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION: dict[str, Any] = tomllib.loads(
    (ROOT / "tests" / "controlplane" / "specification.toml").read_text()
)
OPERATION = re.compile(r"(GET|POST|PUT|PATCH|DELETE)")


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """Every operation of the committed description, by method and path."""
    paths = json.loads((ROOT / "openapi.json").read_text())["paths"]
    return {
        f"{method.upper()} {path}": operation
        for path, operations in paths.items()
        for method, operation in operations.items()
        if OPERATION.fullmatch(method.upper())
    }


@pytest.fixture(scope="module")
def guide() -> str:
    """What operators and developers are told."""
    return "\n".join((ROOT / name).read_text() for name in ("README.md", "deploy/README.md"))


def rows(chapter: str) -> list[list[str]]:
    """Return the cells of a chapter's table in the page of all codes."""
    page = (ROOT / "docs" / "users" / "errors.md").read_text()
    _, found, rest = page.partition(f"\n## {chapter}\n")
    assert found
    lines = rest.partition("\n## ")[0].splitlines()
    cells = [re.split(r" *(?<!\\)\| *", line.strip("| ")) for line in lines if line.startswith("|")]
    return cells[2:]


def code_of(cell: str) -> str:
    """Return the one code of a cell."""
    found = re.fullmatch(r"`([a-z0-9-]+)`", cell)
    assert found, cell
    return found[1]


CHAPTERS = {
    "Problems": 1,
    "Faults": 0,
    "Warnings": 0,
    "Failures of sandboxes": 0,
    "Failures of runs": 0,
}
"""The chapters of the page, and the column of their tables that has the code."""


def documented() -> set[str]:
    """Return every code of the page."""
    return {code_of(row[at]) for name, at in CHAPTERS.items() for row in rows(name)}


# ---------------------------------------------------------------- endpoints


def test_every_endpoint_of_the_specification_is_described(described: dict[str, Any]) -> None:
    wanted = set(SPECIFICATION["endpoints"])
    assert len(wanted) == 43
    assert wanted - set(described) == set()


@pytest.mark.parametrize("endpoint", SPECIFICATION["endpoints"])
def test_every_endpoint_of_the_specification_is_served(endpoint: str) -> None:
    method, _, path = endpoint.partition(" ")
    view = resolve(re.sub(r"\{sequence\}", "1", re.sub(r"\{(?!seq)\w+\}", EXAMPLE, path)))
    actions = getattr(view.func, "actions", None)
    if actions is None:
        assert hasattr(view.func.view_class, method.lower()), endpoint  # type: ignore[attr-defined]
    else:
        assert hasattr(view.func.cls, actions[method.lower()]), endpoint  # type: ignore[attr-defined]


EXAMPLE = "019af2c0-0000-7000-8000-00000000000a"


@pytest.mark.parametrize("path", SPECIFICATION["pages"])
def test_every_page_of_the_specification_is_served(path: str) -> None:
    resolve(path)  # raises when there is nothing


@pytest.mark.parametrize(("place", "members"), [("query", "query"), ("headers", "header")])
def test_every_parameter_of_the_specification_is_described(
    described: dict[str, Any], place: str, members: str
) -> None:
    for endpoint, wanted in SPECIFICATION[place].items():
        parameters = described[endpoint].get("parameters", [])
        names = {each["name"].lower() for each in parameters if each["in"] == members}
        names |= {each["name"] for each in parameters if each["in"] == members}
        schemes = json.dumps(described[endpoint].get("security", [])).lower()
        missing = [name for name in wanted if name not in names]
        assert not missing or (place == "headers" and "gateway" in schemes), endpoint


def _routes(patterns: list[Any], before: str = "") -> list[str]:
    found = []
    for each in patterns:
        here = before + str(each.pattern)
        if isinstance(each, URLResolver):
            found += [] if here.startswith("admin/") else _routes(each.url_patterns, here)
        elif isinstance(each, URLPattern):
            found.append("/" + re.sub(r"<(?:\w+:)?(\w+)>", "{}", here))
    return found


def test_every_route_of_the_code_is_described_or_a_page(described: dict[str, Any]) -> None:
    shown = {re.sub(r"\{\w+\}", "{}", operation.split(" ")[1]) for operation in described}
    pages = {*SPECIFICATION["pages"]}
    # What lies below the admin's page is its own.
    routes = {
        route
        for route in _routes(get_resolver().url_patterns)
        if "^" not in route and not route.startswith("/admin/")
    }
    assert len(routes) > 30
    assert routes - shown - pages == set()


def test_every_endpoint_that_is_described_stands_in_its_page(described: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "users" / "api.md").read_text()
    told = re.findall(rf"^### `({OPERATION.pattern} [^`]+)`$", page, flags=re.MULTILINE)
    assert sorted({each[0] for each in told} ^ set(described)) == []


# ---------------------------------------------------------------- settings and commands


def test_every_setting_of_the_specification_is_documented(guide: str) -> None:
    missing = [name for name in SPECIFICATION["settings"] if f"`{name}`" not in guide]
    assert len(SPECIFICATION["settings"]) > 30
    assert missing == []


def test_the_defaults_of_the_specification_are_those_of_the_code() -> None:
    stated = {name: text for name, text in SPECIFICATION["settings"].items() if text != "..."}
    done = load(
        {},
        f"print(json.dumps({{n: str(getattr(s, n)) for n in {list(stated)!r} if hasattr(s, n)}} | "
        "{'CORS_ALLOWED_ORIGINS': s.CORS_ALLOWED_ORIGINS_SETTING}))",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 15
    assert found == {name: text for name, text in stated.items() if name in found}


def test_every_command_of_the_code_is_documented(guide: str) -> None:
    commands = [name for name, app in get_commands().items() if str(app) in APPS]
    assert len(commands) > 5
    assert [name for name in sorted(commands) if not re.search(rf"\b{name}\b", guide)] == []


def test_every_command_that_is_documented_exists(guide: str) -> None:
    named = set(re.findall(r"manage\.py ([a-z0-9]+)", guide))
    assert len(named) > 5
    assert named - set(get_commands()) == set()


# ---------------------------------------------------------------- codes


@pytest.fixture(scope="module")
def codes() -> Codes:
    """The codes of the code, all of whose serializers are loaded."""
    assert get_resolver().url_patterns
    return Codes()


def test_every_code_that_the_code_sends_is_documented(codes: Codes) -> None:
    sent = codes.given() | set(codes.problems()) | field_codes() | set(SPECIFICATION["codes"])
    assert len(sent) > 190
    assert sorted(sent - documented()) == []


def test_every_code_that_is_documented_exists(codes: Codes) -> None:
    known = codes.given() | set(codes.problems()) | field_codes() | literals()
    assert sorted(documented() - known) == []


def test_every_problem_is_documented_with_its_status(codes: Codes) -> None:
    problems = codes.problems()
    told = {code_of(row[1]): int(row[0]) for row in rows("Problems")}
    assert sorted(set(problems) - set(told)) == []
    assert {code: (status, problems.get(code)) for code, status in told.items()
            if status not in problems.get(code, ())} == {}  # fmt: skip
    wanted = SPECIFICATION["statuses"]
    assert {code: told[code] for code in wanted} == wanted


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_code_stands_once_in_its_chapter_with_a_meaning_and_what_to_do(chapter: str) -> None:
    found = rows(chapter)
    listed = [code_of(row[CHAPTERS[chapter]]) for row in found]
    assert len(listed) > (0 if chapter == "Warnings" else 10)
    assert len(listed) == len(set(listed))
    assert [row for row in found if not all(row) or len(row) != 3 + CHAPTERS[chapter]] == []
