"""What the database says about the names in question, gathered in one statement.

:mod:`.resolution` decides on these values alone. A second statement is needed only for what stands
behind an override or a virtual package, and for names that are nearly right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db import connection

from .aliases import aliases
from .names import Query, one_slip_apart, squeezed, stem

MAX_ALTERNATIVES: Final = 10
_SHORTEST_SLIP: Final = 4
"""Nearly every shorter name is one slip away from some other."""

_ENTRIES: Final = """
SELECT 'entry', package.family, package.name, package.repository, package.versions::text[],
    package.providers::text[], NULL::timestamptz
FROM unnest(%(families)s::text[], %(names)s::text[]) AS wanted (family, folded)
JOIN workspaces_package AS package
    ON package.family = wanted.family AND package.folded = wanted.folded
"""
_ALL: Final = (
    _ENTRIES
    + """
UNION ALL
SELECT 'index', family, architecture, '', '{}', '{}', read_at FROM workspaces_packageindex
WHERE read_at IS NOT NULL
UNION ALL
SELECT 'override', family, name, note, packages::text[], '{}', NULL FROM workspaces_packageoverride
WHERE name = ANY(%(asked)s)
"""
)
_NEAR: Final = """
(SELECT name, squeezed, 0 FROM workspaces_package
WHERE family = %(family)s AND NOT virtual AND size = %(size)s AND squeezed = %(squeezed)s LIMIT 10)
UNION ALL
(SELECT name, squeezed, 1 FROM workspaces_package
WHERE family = %(family)s AND NOT virtual AND size = ANY(%(sizes)s)
    AND squeezed >= %(first)s AND squeezed < %(first)s || '~' LIMIT 400)
UNION ALL
(SELECT name, squeezed, 1 FROM workspaces_package
WHERE family = %(family)s AND NOT virtual AND size = ANY(%(sizes)s)
    AND reverse(squeezed) COLLATE "C" >= %(last)s
    AND reverse(squeezed) COLLATE "C" < %(last)s || '~' LIMIT 400)
UNION ALL
(SELECT name, squeezed, 2 FROM workspaces_package
WHERE family = %(family)s AND NOT virtual AND folded > %(folded)s
    AND folded < %(folded)s || '~' ORDER BY folded LIMIT 5)
UNION ALL
(SELECT name, squeezed, 3 FROM workspaces_package
WHERE family = %(family)s AND NOT virtual AND stem = %(stem)s LIMIT 20)
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A name of an index: a package with its versions, or a virtual one with its providers."""

    name: str
    repository: str = ""
    versions: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """An index that has been read."""

    architecture: str
    read_at: datetime


@dataclass(frozen=True, slots=True)
class Override:
    """The operator's word on a name; without packages it is refused."""

    packages: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that decides on the names that were asked for."""

    indexes: Mapping[str, ReadIndex] = field(default_factory=dict)
    overrides: Mapping[tuple[str, str], Override] = field(default_factory=dict)
    """By name in lower case and family; the empty family stands for all of them."""
    entries: Mapping[tuple[str, str], tuple[Entry, ...]] = field(default_factory=dict)
    """By family and name in lower case."""

    def override(self, name: str, family: str) -> Override | None:
        """Return the override of a folded name for a family."""
        return self.overrides.get((name, family)) or self.overrides.get((name, ""))

    def entry(self, family: str, name: str) -> Entry | None:
        """Return the entry of exactly this name."""
        for entry in self.entries.get((family, name.lower()), ()):
            if entry.name == name:
                return entry
        return None


NOTHING: Final = Facts()
"""What is known where no index was ever read and the operator said nothing."""


def gather(queries: Collection[Query], families: Collection[str]) -> Facts:
    """Return what is known of the names in ``queries`` in each of ``families``."""
    names = {query.folded for query in queries}
    names |= {plain.folded for query in queries if (plain := query.without_suffix())}
    wanted = {
        (family, name)
        for family in families
        for asked in names
        for name in (asked, *map(str.lower, aliases(family).get(asked, ())))
    }
    indexes: dict[str, ReadIndex] = {}
    overrides: dict[tuple[str, str], Override] = {}
    entries: dict[tuple[str, str], tuple[Entry, ...]] = {}
    for kind, family, name, text, words, providers, at in _rows(_ALL, wanted, asked=list(names)):
        if kind == "index":
            indexes[family] = ReadIndex(name, at)
        elif kind == "override":
            overrides[name, family] = Override(tuple(words), text)
        else:
            _add(entries, family, Entry(name, text, tuple(words), tuple(providers)))
    behind = {
        (family, provider.lower())
        for (family, _), found in entries.items()
        for entry in found
        for provider in entry.providers[:1]
        if len(entry.providers) == 1
    } | {
        (family, package.lower())
        for (_, own), override in overrides.items()
        for family in ([own] if own else families)
        for package in override.packages
    }
    if behind - wanted:
        for _, family, name, text, words, providers, _ in _rows(_ENTRIES, behind - wanted):
            _add(entries, family, Entry(name, text, tuple(words), tuple(providers)))
    return Facts(indexes, overrides, entries)


def near_names(query: Query, family: str) -> tuple[str, ...]:
    """Return packages of an index whose names are nearly the one asked for, the nearest first.

    In that order: the same but for punctuation, one slip apart, beginning like it, and the same but
    for what distributions put around names.
    """
    short = squeezed(query.folded)
    half = max(0, (len(short) - 1) // 2)
    sizes = [len(short) - 1, len(short), len(short) + 1] if len(short) >= _SHORTEST_SLIP else []
    parameters: dict[str, Any] = {
        "family": family,
        "size": len(short),
        "squeezed": short,
        "sizes": sizes,
        "first": short[:half],
        "last": short[half + 1 :][::-1],
        "folded": query.folded,
        "stem": stem(query.folded),
    }
    with connection.cursor() as cursor:
        cursor.execute(_NEAR, parameters)
        rows = cursor.fetchall()
    close = sorted(
        (kind, len(name), name)
        for name, other, kind in rows
        if kind != 1 or (other != short and one_slip_apart(short, other))
    )
    return tuple(dict.fromkeys(name for _, _, name in close))[:MAX_ALTERNATIVES]


def _add(entries: dict[tuple[str, str], tuple[Entry, ...]], family: str, entry: Entry) -> None:
    key = (family, entry.name.lower())
    entries[key] = (*entries.get(key, ()), entry)


def _rows(
    statement: str, wanted: Iterable[tuple[str, str]], **parameters: Any
) -> list[tuple[Any, ...]]:
    families, names = zip(*sorted(wanted), strict=True) if wanted else ((), ())
    with connection.cursor() as cursor:
        cursor.execute(statement, {"families": list(families), "names": list(names), **parameters})
        return list(cursor.fetchall())
