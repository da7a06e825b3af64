"""The curated table of package names, read from ``aliases.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

_DATA_OF: Final = {"ubuntu": ("ubuntu", "debian")}
"""The columns of the table that count for a family, first the more particular one."""


@cache
def canonical_ids() -> Mapping[str, str]:
    """Return, for every name of the table in lower case, the tool that it means."""
    return MappingProxyType(
        {
            name: tool
            for tools in _table().values()
            for tool, row in tools.items()
            for name in (tool, *row.get("also", ()))
        }
    )


@cache
def aliases(os_family: str) -> Mapping[str, tuple[str, ...]]:
    """Return, for every name of the table in lower case, the packages it means on ``os_family``.

    A name with no packages is known and not packaged there. A package that some name means, means
    itself.

    :raises ValueError: two tools of the table claim the same name.
    """
    columns = _DATA_OF.get(os_family, (os_family,))
    result: dict[str, tuple[str, ...]] = {}
    for tools in _table().values():
        for tool, row in tools.items():
            packages = next((row[column] for column in columns if column in row), [tool])
            for name in (tool, *row.get("also", ())):
                if name in result:
                    raise ValueError(f"two tools are called {name}")
                result[name] = tuple(packages)
    for meant in list(result.values()):
        for package in meant:
            result.setdefault(package.lower(), (package,))
    return MappingProxyType(result)


@cache
def _table() -> dict[str, dict[str, dict[str, list[str]]]]:
    return tomllib.loads(files(__package__).joinpath("aliases.toml").read_text("utf-8"))
