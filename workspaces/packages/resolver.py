"""What a name means in a distribution: decided on known facts, without any I/O.

The order is: the operator's override, the curated table of :mod:`.aliases`, the distribution's
index. Nothing that is merely close is ever chosen. A query that is in no place of them is
``unknown`` here; who asks may then look for names that are nearly right.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from workspaces.families import FAMILIES, OsFamily

from .aliases import aliases
from .facts import Entry, Facts
from .names import Query, architecture_fits, offered_version

_SHOWN_VERSIONS = 10
_SHOWN_NAMES = 10


class Status(StrEnum):
    """What came of a query; the words of the wire."""

    RESOLVED = "resolved"
    AMBIGUOUS = "ambiguous"
    UNSUPPORTED = "unsupported"
    NOT_FOUND = "not-found"
    INVALID = "invalid"


class Source(StrEnum):
    """Who decided."""

    OVERRIDE = "override"
    ALIAS = "alias"
    INDEX = "index"

    @property
    def for_clients(self) -> str:
        """What existing clients of this API call it: a table is one override of many."""
        return "cache" if self is Source.INDEX else "override"


class Reason(StrEnum):
    """Why a query is not resolved."""

    NAME_INVALID = "name-invalid"
    UNKNOWN = "unknown"
    NOT_PACKAGED = "not-packaged"
    REFUSED = "refused"
    SEVERAL_PROVIDERS = "several-providers"
    SIMILAR_NAMES = "similar-names"
    VERSION_UNAVAILABLE = "version-unavailable"
    VERSION_UNSUPPORTED = "version-unsupported"
    VERSION_AMBIGUOUS = "version-ambiguous"
    ARCHITECTURE_UNAVAILABLE = "architecture-unavailable"
    INDEX_UNREAD = "index-unread"
    OS_UNSUPPORTED = "unsupported-os"


@dataclass(frozen=True, slots=True)
class ResolvedPackage:
    """A package to install. ``version`` is the one that is asked for, ``offered`` the index's."""

    name: str
    version: str | None = None
    offered: str | None = None
    repository: str | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a query means in one family; ``reason`` and ``detail`` unless it is resolved."""

    status: Status
    source: Source
    packages: tuple[ResolvedPackage, ...] = ()
    reason: Reason | None = None
    detail: str = ""
    alternatives: tuple[str, ...] = ()

    @property
    def is_resolved(self) -> bool:
        """Whether there is something to install."""
        return self.status == Status.RESOLVED


def resolve(query: Query, family_name: str, facts: Facts) -> Resolution:
    """Return what ``query`` means in a family.

    :raises KeyError: there is no such family.
    """
    found = _resolve(query, FAMILIES[family_name], facts)
    if found.reason in {Reason.UNKNOWN, Reason.NOT_PACKAGED}:
        plain = query.without_suffix()
        if plain is not None and FAMILIES[family_name].package_manager == "dnf":
            other = _resolve(plain, FAMILIES[family_name], facts)
            return other if other.reason not in {Reason.UNKNOWN, Reason.NOT_PACKAGED} else found
    return found


def with_similar(found: Resolution, query: Query, names: tuple[str, ...]) -> Resolution:
    """Return ``found`` with names that are nearly right: ambiguous when there are any."""
    if not names:
        return found
    return Resolution(
        Status.AMBIGUOUS,
        Source.INDEX,
        reason=Reason.SIMILAR_NAMES,
        detail=f"There is no package '{query.name}'; similar names are {_listed(names)}.",
        alternatives=names,
    )


def _resolve(query: Query, family: OsFamily, facts: Facts) -> Resolution:
    if (override := facts.override(query.folded, family.name)) is not None:
        if not override.packages:
            told = f" {override.note}" if override.note else ""
            return _refusal(
                Source.OVERRIDE,
                Reason.REFUSED,
                f"The operator of this installation refuses '{query.name}'.{told}",
            )
        entries = [
            facts.entry(family.name, name) or Entry(name, versions=()) for name in override.packages
        ]
        return _settled(query, family, facts, entries, Source.OVERRIDE)

    meant = aliases(family.name).get(query.folded)
    index = facts.indexes.get(family.name)
    if meant and index is None:
        return _settled(query, family, facts, [Entry(name) for name in meant], Source.ALIAS)
    if meant:
        behind = [_behind(facts.entry(family.name, name), family, facts) for name in meant]
        if all(entry is not None for entry in behind):
            entries = [entry for entry in behind if entry is not None]
            return _settled(query, family, facts, entries, Source.ALIAS)
    name = query.folded if family.lower_case_names else query.name
    if not family.package_name.fullmatch(name):
        return Resolution(
            Status.NOT_FOUND,
            Source.INDEX,
            reason=Reason.NAME_INVALID,
            detail=f"'{query.name}' is not a valid package name on {family.title}.",
        )
    if index is None and meant is None:
        return _refusal(
            Source.INDEX,
            Reason.INDEX_UNREAD,
            f"The package index of {family.title} has not been read yet.",
        )
    return _in_index(query, family, facts, known=meant is not None)


def _in_index(query: Query, family: OsFamily, facts: Facts, *, known: bool) -> Resolution:
    """Return what the index says; ``known``: the curated table says that it is not packaged."""
    found = facts.entries.get((family.name, query.folded), ())
    exact = next((entry for entry in found if entry.name == query.name), None)
    if exact is None and len(found) == 1:
        exact = found[0]
    if exact is not None and len(exact.providers) < 2:
        behind = _behind(exact, family, facts)
        if behind is not None:
            return _settled(query, family, facts, [behind], Source.INDEX)
    if exact is not None:
        return Resolution(
            Status.AMBIGUOUS,
            Source.INDEX,
            reason=Reason.SEVERAL_PROVIDERS,
            detail=f"'{query.name}' is provided by several packages of {family.title}: "
            f"{_listed(exact.providers)}.",
            alternatives=exact.providers[:_SHOWN_NAMES],
        )
    if found:
        names = tuple(entry.name for entry in found)
        return Resolution(
            Status.AMBIGUOUS,
            Source.INDEX,
            reason=Reason.SIMILAR_NAMES,
            detail=f"On {family.title}, {_listed(names)} are different packages.",
            alternatives=names,
        )
    if known:
        return _refusal(
            Source.ALIAS,
            Reason.NOT_PACKAGED,
            f"'{query.name}' is not packaged for {family.title}.",
        )
    return Resolution(
        Status.NOT_FOUND,
        Source.INDEX,
        reason=Reason.UNKNOWN,
        detail=f"{family.title} has no package '{query.name}'.",
    )


def _behind(entry: Entry | None, family: OsFamily, facts: Facts) -> Entry | None:
    """Return the package that an entry stands for: itself, or the only one that provides it."""
    if entry is None or entry.versions:
        return entry
    if len(entry.providers) != 1:
        return None
    return facts.entry(family.name, entry.providers[0])


def _settled(
    query: Query, family: OsFamily, facts: Facts, entries: list[Entry], source: Source
) -> Resolution:
    """Return the packages of a query, unless its version or architecture stands against it."""
    first, *further = entries
    index = facts.indexes.get(family.name)
    if query.version is not None or query.architecture is not None:
        if family.pin is None and query.version is not None:
            return _refusal(
                source,
                Reason.VERSION_UNSUPPORTED,
                f"{family.title} offers one version of each package only; remove the version of "
                f"'{query.name}'.",
            )
        if query.version is not None and further and first.name.lower() != query.folded:
            names = tuple(entry.name for entry in entries)
            return Resolution(
                Status.AMBIGUOUS,
                source,
                reason=Reason.VERSION_AMBIGUOUS,
                detail=f"'{query.name}' means several packages on {family.title} "
                f"({', '.join(names)}); ask for each of them with its own version.",
                alternatives=names,
            )
        if index is None:
            return _refusal(
                Source.INDEX,
                Reason.INDEX_UNREAD,
                f"The package index of {family.title} has not been read yet, so no version can be "
                "checked.",
            )
        if not architecture_fits(query.architecture, index.architecture):
            return _refusal(
                Source.INDEX,
                Reason.ARCHITECTURE_UNAVAILABLE,
                f"'{query.name}' was requested for {query.architecture}; images of {family.title} "
                "are "
                f"built for {index.architecture} here.",
            )
        if query.version is not None and not offered_version(query.version, first.versions, family):
            offered = _listed(first.versions[:_SHOWN_VERSIONS])
            return _refusal(
                Source.INDEX,
                Reason.VERSION_UNAVAILABLE,
                f"{family.title} offers no version {query.version} of '{first.name}'"
                + (f"; it has {offered}." if offered else "."),
            )
    packages = [_package(first, query.version), *(_package(entry, None) for entry in further)]
    return Resolution(Status.RESOLVED, source, tuple(packages))


def _package(entry: Entry, version: str | None) -> ResolvedPackage:
    offered = entry.versions[0] if entry.versions else None
    return ResolvedPackage(entry.name, version, offered, entry.repository or None)


def _refusal(source: Source, reason: Reason, detail: str) -> Resolution:
    return Resolution(Status.UNSUPPORTED, source, reason=reason, detail=detail)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES])
    return f"{shown} and others" if len(names) > _SHOWN_NAMES else shown
