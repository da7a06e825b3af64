"""What the clients are made of: nothing of the service, and one source for both kinds."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import CONTRACTS, ROOT
from tests.clients.places import CLIENTS

FILES = sorted(CLIENTS.rglob("*.py"))
DISTRIBUTIONS = {"agents": "openai_agents"}
"""What packages are called where they are installed from, if not as they are imported."""
SERVICE = {*CONTRACTS["root_packages"], "tests", "django", "rest_framework"}


def imported(path: Path) -> set[str]:
    """Return the packages that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CLIENTS)))
def test_a_client_imports_nothing_of_the_service(path: Path) -> None:
    assert imported(path) & SERVICE == set()


def test_the_service_imports_no_client() -> None:
    packages = {path.parent.name for path in CLIENTS.glob("*/*/__init__.py")}
    assert "controlplane_client" in packages
    found = [
        path
        for package in CONTRACTS["root_packages"]
        for path in (ROOT / package).rglob("*.py")
        if imported(path) & packages
    ]
    # The E2B facade is no part of the service: it is a client of its API, through this package.
    assert [path for path in found if ROOT / "e2bfacade" not in path.parents] == []


def test_what_is_for_threads_is_made_of_what_is_for_asyncio() -> None:
    maker = runpy.run_path(str(CLIENTS / "python" / "make_sync.py"))
    stale = [
        module
        for module in maker["MODULES"]
        if (maker["PACKAGE"] / "_sync" / f"{module}.py").read_text() != maker["made"](module)
    ]
    assert stale == [], f"{sys.executable} clients/python/make_sync.py"


@pytest.mark.parametrize(
    "project", sorted(CLIENTS.glob("*/pyproject.toml")), ids=lambda path: path.parent.name
)
def test_a_package_needs_only_what_it_names(project: Path) -> None:
    told = project.read_text()
    own = {path.parent.name for path in CLIENTS.glob("*/*/__init__.py")}
    needed = set()
    for path in project.parent.glob("controlplane_*/**/*.py"):
        needed |= imported(path) - sys.stdlib_module_names - {"__future__"}
    needed = {DISTRIBUTIONS.get(each, each) for each in needed}
    named = {each.replace("-", "_") for each in re.findall(r'^    "([\w-]+)', told, re.MULTILINE)}
    itself = {path.parent.name for path in project.parent.glob("*/__init__.py")}
    assert needed - itself - named == set()
    assert own & needed <= itself | named
