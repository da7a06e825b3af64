"""Standardization: from the names people use to the packages of a distribution.

Applied when a sandbox is created, so that its blueprint names what is really installed. The
curated table of :mod:`.aliases` knows what a tool is called where (``rg``, ``node``,
``build-essential``); every other name is taken as the distribution's own, if it can be one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from builds.families import FAMILIES, OsFamily
from controlplane.errors import Fault, ValidationFailed
from workspaces.blueprint import PackageRequest

from .aliases import aliases

POINTER: Final = "/spec/tooling/packages"

__all__ = ["aliases", "standardize"]


def standardize(
    requested: Iterable[PackageRequest], os_family: str, *, pointer: str = POINTER
) -> tuple[PackageRequest, ...]:
    """Return the packages of ``os_family`` (a family's name, not ``auto``) that are asked for.

    One request can give several packages, and each package comes once, where it is first asked
    for. A version counts for the package that the request is about. Standardized packages stay
    as they are when they are standardized again.

    :param pointer: JSON pointer of the list in the request's body.
    :raises ValidationFailed: with a fault for every request that cannot be met.
    :raises KeyError: there is no such family.
    """
    family = FAMILIES[os_family]
    faults: list[Fault] = []
    versions: dict[str, str | None] = {}
    for position, request in enumerate(requested):
        here = f"{pointer}/{position}/id"
        try:
            packages = _packages(request, family)
        except ValueError as error:
            code, detail = error.args
            faults.append(Fault(code, detail, pointer=here))
            continue
        for name, version in packages:
            before = versions.get(name)
            if version is not None and before is not None and version != before:
                faults.append(
                    Fault(
                        "conflicting-versions",
                        f"'{name}' is asked for in version {before} and in version {version}.",
                        pointer=here,
                    )
                )
                continue
            versions[name] = version if before is None else before
    if faults:
        raise ValidationFailed(faults)
    return tuple(PackageRequest(id=name, version=version) for name, version in versions.items())


def _packages(request: PackageRequest, family: OsFamily) -> list[tuple[str, str | None]]:
    """Return the packages of one request, each with its version.

    :raises ValueError: with the code and the detail of a fault.
    """
    known = aliases(family.name).get(request.id.lower())
    if known is None:
        name = request.id.lower() if family.lower_case_names else request.id
        if not family.package_name.fullmatch(name):
            raise ValueError(
                "package-name-invalid", f"'{request.id}' cannot be a package of {family.title}."
            )
        return [(name, request.version)]
    if not known:
        raise ValueError(
            "package-not-offered", f"'{request.id}' is not packaged for {family.title}."
        )
    first, *further = known
    if further and request.version is not None and first != request.id.lower():
        raise ValueError(
            "package-version-ambiguous",
            f"'{request.id}' means several packages on {family.title} ({', '.join(known)}); ask "
            "for each of them with its own version.",
        )
    return [(first, request.version), *((name, None) for name in further)]
