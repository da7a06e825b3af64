"""The measures of the structure: ``python -m tests.architecture.measures`` prints them all.

``test_measures.py`` holds those that have a limit.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import grimp

from tests.architecture.sources import CONTRACTS, ROOT, Source, floors, sources

SAME_IN_EVERY_APP = {
    "__init__", "__main__", "admin", "apps", "checks", "conftest", "forms", "managers", "models",
    "openapi", "presentation", "serializers", "services", "settings", "urls", "views", "wsgi",
}  # fmt: skip
"""Names that Django and DRF, or our habits with them, give to a file of every app."""

ONE_FILE_A_RESOURCE = {"views", "admin", "commands"}
"""Folders whose files are named after what they serve, so views and admin name the same things."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure, how it is counted, and the limit that ``make lint`` holds, if it holds one."""

    name: str
    count: Callable[[], int]
    limit: int | None = None


def _own_code() -> Iterator[Source]:
    return (source for source in sources() if "migrations" not in source.path.parts)


def _lines(source: Source) -> int:
    return len((ROOT / source.path).read_text().splitlines())


@cache
def _graph() -> Any:
    return grimp.build_graph(*CONTRACTS["root_packages"], cache_dir=None)


def upward_imports() -> int:
    """Count the imports of an app that stands higher; the agent stands below all."""
    heights = floors() | {"runs.agent": -1}

    def height(module: str) -> int | None:
        agent = module == "runs.agent" or module.startswith("runs.agent.")
        return heights.get("runs.agent" if agent else module.partition(".")[0])

    found = 0
    for importer in _graph().modules:
        for imported in _graph().find_modules_directly_imported_by(importer):
            lower, upper = height(importer), height(imported)
            found += lower is not None and upper is not None and upper > lower
    return found


def contract_exceptions() -> int:
    """Count the imports that a contract lets pass, and the alarms for stale ones that are off."""
    contracts = CONTRACTS["contracts"]
    return sum(
        len(each.get("ignore_imports", ()))
        + (each.get("unmatched_ignore_imports_alerting", "error") != "error")
        for each in contracts
    )


def files_in_the_largest_folder() -> int:
    """Count the Python files that stand side by side where most of them do."""
    found = Counter(source.path.parent for source in _own_code() if source.path.stem != "__init__")
    return max(found.values())


def share_of_the_largest_package() -> int:
    """Return the percentage of lines of code below the largest package of an app, or beside it."""
    found: Counter[Path] = Counter()
    for source in _own_code():
        folder = source.path.parent
        found[Path(*folder.parts[:2])] += _lines(source)
    return round(100 * max(found.values()) / found.total())


def repeated_basenames() -> int:
    """Count the names that more than one file has and that are not Django's."""
    found = Counter(
        source.path.stem
        for source in _own_code()
        if source.path.stem not in SAME_IN_EVERY_APP
        and source.path.parent.name not in ONE_FILE_A_RESOURCE
    )
    return sum(number > 1 for number in found.values())


def plain_view_classes() -> int:
    """Count the classes of DRF's ``APIView``, each of which answers one path."""
    return sum(
        ast.unparse(base).rpartition(".")[2].endswith("APIView")
        for source in _own_code()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    )


def viewsets() -> int:
    """Count the viewsets that answer, one a resource."""
    return sum(
        ast.unparse(base).rpartition(".")[2].endswith("ViewSet")
        for source in _own_code()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases[:1]
    )


def files_of_a_job() -> int:
    """Count the files of ``builds`` that ``JobRunner.run`` can reach."""
    runner = "builds.pipeline.runner"
    reached: set[str] = _graph().find_upstream_modules(runner)
    places = (ROOT / f"{module.replace('.', '/')}.py" for module in reached | {runner})
    return sum(place.exists() and place.is_relative_to(ROOT / "builds") for place in places)


def returns_of_a_job() -> int:
    """Count the returns of the two parts of a job and of what runs them."""
    parts = {f"builds/pipeline/{name}.py" for name in ("runner", "build", "launch")}
    return sum(
        isinstance(node, ast.Return)
        for source in _own_code()
        if source.path.as_posix() in parts
        for node in ast.walk(source.tree)
    )


def lines_of_code() -> int:
    """Count the lines of the product's Python files, without migrations."""
    return sum(map(_lines, _own_code()))


MEASURES = (
    Measure("imports that point upwards", upward_imports, 0),
    Measure("exceptions in import-linter, alarms switched off", contract_exceptions, 0),
    Measure("files in the largest flat folder", files_in_the_largest_folder, 20),
    Measure("share of the largest package, percent", share_of_the_largest_package, 25),
    Measure("names of files given twice that are not Django's", repeated_basenames, 8),
    Measure("classes of APIView", plain_view_classes, 0),
    Measure("viewsets", viewsets),
    Measure("JobRunner.run: files of builds it reaches", files_of_a_job, 20),
    Measure("JobRunner.run: returns of runner, build and launch", returns_of_a_job, 25),
    Measure("lines of product code", lines_of_code),
)


def main() -> None:
    """Print every measure with its limit."""
    for measure in MEASURES:
        limit = "" if measure.limit is None else f"  (at most {measure.limit})"
        print(f"{measure.count():>8,}  {measure.name}{limit}")  # noqa: T201


if __name__ == "__main__":
    main()
