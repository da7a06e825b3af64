"""The product's source code, parsed, and the floors that its apps stand on."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


@dataclass(frozen=True, slots=True)
class Source:
    """One parsed file; ``path`` is relative to the root."""

    path: Path
    tree: ast.Module

    @property
    def app(self) -> str:
        """The app that it belongs to."""
        return self.path.parts[0]


def floors() -> dict[str, int]:
    """Return how high each app stands, as import-linter holds it; siblings stand equally high.

    Of an app that stands on two floors the upper one counts; the agent holds no queries.
    """
    layers: list[str] = CONTRACTS["contracts"][0]["layers"]
    return {
        part.strip().partition(".")[0]: height
        for height, layer in enumerate(reversed(layers))
        for part in layer.replace("|", ":").split(":")
    }


@cache
def sources() -> tuple[Source, ...]:
    """Return every Python file of the product."""
    return tuple(_parsed())


def _parsed() -> Iterator[Source]:
    for package in CONTRACTS["root_packages"]:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield Source(path.relative_to(ROOT), ast.parse(path.read_text()))
