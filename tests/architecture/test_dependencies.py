"""What we import is declared where it is needed, with a reason; and what is declared is used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions

import pytest

from tests.architecture.sources import ROOT

PROJECT = ROOT / "pyproject.toml"
OURS = tomllib.loads(PROJECT.read_text())["tool"]["ruff"]["lint"]["isort"]["known-first-party"]
ONLY_TYPES = {"_typeshed"}
"""Modules that type checkers have and nothing else."""
IN_PLACES_OF_THEIR_OWN = {"e2b", "generated_client"}
"""What tests install or generate before they use it."""

USED_OTHERWISE = {
    # named in settings, for Django
    "whitenoise": ("controlplane/settings_fixed.py", "whitenoise.middleware"),
    # programs and plugins
    "pytest-xdist": ("Makefile", "--dist=loadfile"),
    "pytest-timeout": ("pyproject.toml", "\ntimeout = "),
    "ruff": ("Makefile", "ruff check"),
    "mypy": ("Makefile", "mypy ."),
    "django-stubs": ("pyproject.toml", "mypy_django_plugin"),
    "djangorestframework-stubs": ("pyproject.toml", "mypy_drf_plugin"),
    "import-linter": ("Makefile", "lint-imports"),
    "oidc-provider-mock": ("tests/docs/test_openid_proxy.py", "oidc_provider_mock"),
    "openapi-python-client": ("tests/clients/generated/test_generated_clients.py", "openapi-"),
    # what the Python client needs, which the E2B facade imports
    "httpx": ("clients/python/pyproject.toml", "httpx>="),
}
"""Declared packages that are not imported by what they are declared for, and who names them."""


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(requirements: list[str]) -> set[str]:
    return {_canonical(re.split(r"[\[<>=!~ ]", each, maxsplit=1)[0]) for each in requirements}


@cache
def _declared() -> tuple[frozenset[str], frozenset[str]]:
    """Return what is declared for the product, and what is for its tests and checks."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    product, tests = project["dependencies"], project["optional-dependencies"]["dev"]
    return frozenset(_names(product)), frozenset(_names(tests))


def _modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


@cache
def _imported() -> dict[str, dict[str, str]]:
    """Return the foreign modules by what imports them, product, clients or tests, with a file."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    known = {*sys.stdlib_module_names, *OURS, *ONLY_TYPES, "tests"}
    found: dict[str, dict[str, str]] = {"product": {}, "clients": {}, "tests": {}}
    for name in filter(None, listed.stdout.split("\0")):
        if not (ROOT / name).exists():
            continue  # removed, and not yet committed
        area = name.partition("/")[0]
        for module in _modules(ast.parse((ROOT / name).read_text())):
            top = module.partition(".")[0]
            if top not in known:
                found[area if area in found else "product"].setdefault(top, name)
    return found


@cache
def _installed() -> Mapping[str, list[str]]:
    return packages_distributions()


@cache
def _packages(module: str) -> set[str]:
    """Return the installed packages that have this module; a namespace may have several."""
    return {_canonical(each) for each in _installed().get(module, [])}


def _undeclared(area: str, declared: frozenset[str]) -> dict[str, str]:
    return {
        module: file
        for module, file in _imported()[area].items()
        if module not in IN_PLACES_OF_THEIR_OWN and not _packages(module) & declared
    }


def test_what_the_product_imports_is_declared_for_the_product() -> None:
    product, _ = _declared()
    assert len(_imported()["product"]) > 15
    assert _undeclared("product", product) == {}


def test_what_the_tests_import_is_declared_for_the_product_or_for_them() -> None:
    product, tests = _declared()
    assert len(_imported()["tests"]) > 15
    assert _undeclared("tests", product | tests) == {}


def test_nothing_is_declared_twice() -> None:
    product, tests = _declared()
    assert product & tests == set()


@pytest.mark.parametrize("name", sorted(_declared()[0]))
def test_what_is_declared_for_the_product_is_used_by_it(name: str) -> None:
    assert _is_used(name, "product"), f"{name} is declared, and nothing of the product uses it"


@pytest.mark.parametrize("name", sorted(_declared()[1]))
def test_what_is_declared_for_tests_is_used(name: str) -> None:
    if name.startswith("types-"):
        product, tests = _declared()
        typed = name.removeprefix("types-").removesuffix("-ts")
        assert typed in product | tests, f"nothing is left that {name} describes"
        return
    assert _is_used(name, "tests", "clients"), f"{name} is declared, and nothing uses it"


def _is_used(name: str, *areas: str) -> bool:
    if name in USED_OTHERWISE:
        file, text = USED_OTHERWISE[name]
        return text in (ROOT / file).read_text()
    return any(name in _packages(module) for area in areas for module in _imported()[area])


def test_every_declared_package_has_a_line_with_its_reason() -> None:
    text = PROJECT.read_text()
    lines = [
        line
        for part in ("dependencies = [", "dev = [")
        for line in text.partition(f"\n{part}\n")[2].partition("\n]")[0].splitlines()
    ]
    assert len(lines) == sum(map(len, _declared()))
    for line in lines:
        requirement, _, reason = line.partition("#")
        assert re.fullmatch(r'\s*"[^"]+",\s*', requirement), line
        assert len(reason.split()) >= 2, line
