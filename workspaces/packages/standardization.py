"""The packages of a blueprint: every request settled at once, or every fault named at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from controlplane.errors import BadGateway, Fault, ValidationFailed
from workspaces.blueprint import PackageRequest
from workspaces.families import FAMILIES

from .facts import Facts, gather, near_names
from .names import MalformedQueryError, Query, is_package_name
from .resolver import Reason, Resolution, resolve, with_similar

POINTER: Final = "/spec/tooling/packages"
INDEX_UNAVAILABLE: Final = "package-index-unavailable"

_MAX_SEARCHES: Final = 20
"""So many names of one request are looked for among similar ones; the rest is just not found."""

_CODES: Final = {
    Reason.NAME_INVALID: "package-name-invalid",
    Reason.UNKNOWN: "package-not-found",
    Reason.NOT_PACKAGED: "package-not-offered",
    Reason.REFUSED: "package-refused",
    Reason.SEVERAL_PROVIDERS: "package-ambiguous",
    Reason.SIMILAR_NAMES: "package-ambiguous",
    Reason.VERSION_UNAVAILABLE: "package-version-unavailable",
    Reason.VERSION_UNSUPPORTED: "package-version-unsupported",
    Reason.VERSION_AMBIGUOUS: "package-version-ambiguous",
    Reason.ARCHITECTURE_UNAVAILABLE: "package-architecture-unavailable",
}
_OF_THE_VERSION: Final = {Reason.VERSION_UNAVAILABLE, Reason.VERSION_UNSUPPORTED}

Similar = Callable[[Query, str], tuple[str, ...]]


def standardize_with_index(
    requested: Sequence[PackageRequest], os_family: str
) -> tuple[PackageRequest, ...]:
    """Return what :func:`standardize` does, on what the database knows now."""
    queries = [query for request in requested if (query := _query(request)) is not None]
    if not queries:
        return standardize(requested, os_family, Facts())
    return standardize(requested, os_family, gather(queries, [os_family]), similar=near_names)


def standardize(
    requested: Iterable[PackageRequest],
    os_family: str,
    facts: Facts,
    *,
    similar: Similar = lambda query, family: (),
    pointer: str = POINTER,
) -> tuple[PackageRequest, ...]:
    """Return the packages of ``os_family`` (a family's name, not ``auto``) that are asked for.

    One request can give several packages, and each package comes once, where it is first asked
    for. A version counts for the package that the request is about. Standardized packages stay
    as they are when they are standardized again.

    :param similar: finds names that are nearly right, for faults that help.
    :param pointer: JSON pointer of the list in the request's body.
    :raises ValidationFailed: with a fault for every request that cannot be met.
    :raises BadGateway: no fault, but the family's index would be needed and was never read.
    :raises KeyError: there is no such family.
    """
    faults: list[Fault] = []
    unread: list[Fault] = []
    versions: dict[str, str | None] = {}
    searches = 0
    for position, request in enumerate(requested):
        here = f"{pointer}/{position}"
        query = _query(request)
        if query is None:
            faults.append(_malformed(request, os_family, here))
            continue
        found = resolve(query, os_family, facts)
        may_search = os_family in facts.indexes and searches < _MAX_SEARCHES
        if may_search and found.reason in {Reason.UNKNOWN, Reason.NAME_INVALID}:
            searches += 1
            found = with_similar(found, query, similar(query, os_family))
        if found.reason == Reason.INDEX_UNREAD:
            unread.append(Fault(INDEX_UNAVAILABLE, found.detail, pointer=f"{here}/id"))
        elif found.reason is not None:
            faults.append(_fault(found, found.reason, here))
        else:
            faults += _take(found, os_family, versions, here)
    if faults:
        raise ValidationFailed(faults)
    if unread:
        raise index_unavailable(os_family, unread)
    return tuple(PackageRequest(id=name, version=version) for name, version in versions.items())


def index_unavailable(os_family: str, faults: Sequence[Fault] = ()) -> BadGateway:
    """Return the error for a family whose index was never read."""
    error = BadGateway(
        f"The package index of {FAMILIES[os_family].title} has not been read yet, so these names "
        "cannot be checked. The build workers read the indexes of PACKAGE_SYNC_FAMILIES; an "
        f"operator reads it at once with: manage.py syncpackages --family {os_family}",
        code=INDEX_UNAVAILABLE,
        errors=faults,
    )
    error.members["targetOs"] = os_family
    return error


def _query(request: PackageRequest) -> Query | None:
    """Return what a request asks for; None when it can be the name of nothing."""
    try:
        query = Query.parse(request.id)
    except MalformedQueryError:
        return None
    # The blueprint has checked the version's characters already.
    return Query(query.name, request.version or query.version, query.architecture)


def _malformed(request: PackageRequest, os_family: str, here: str) -> Fault:
    title = FAMILIES[os_family].title
    return Fault(
        _CODES[Reason.NAME_INVALID],
        f"'{request.id}' is not a valid package name on {title}.",
        pointer=f"{here}/id",
    )


def _fault(found: Resolution, reason: Reason, here: str) -> Fault:
    member = "version" if reason in _OF_THE_VERSION else "id"
    return Fault(_CODES[reason], found.detail, pointer=f"{here}/{member}")


def _take(
    found: Resolution, os_family: str, versions: dict[str, str | None], here: str
) -> list[Fault]:
    """Add the packages of one request to those of the earlier ones."""
    faults = []
    family = FAMILIES[os_family]
    for package in found.packages:
        if not is_package_name(package.name, family):
            # Of an override or an index that was stored before such names were refused.
            told = f"it stands for '{package.name}', which is not a valid package name on"
            text = f"This cannot be installed: {told} {family.title}."
            faults.append(Fault(_CODES[Reason.NAME_INVALID], text, pointer=f"{here}/id"))
            continue
        before = versions.get(package.name)
        if package.version is not None and before is not None and package.version != before:
            faults.append(
                Fault(
                    "conflicting-versions",
                    f"'{package.name}' is requested both in version {before} and in version "
                    f"{package.version}.",
                    pointer=f"{here}/id",
                )
            )
            continue
        versions[package.name] = package.version if before is None else before
    return faults
