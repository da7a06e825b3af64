"""What a person types for a package, taken apart; and when two names are close."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from workspaces.families import OsFamily

MAX_QUERY_LENGTH: Final = 255

_FOLDED: Final = re.compile(r"[a-z0-9][a-z0-9@._+-]*")
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~_^-]*")
_ARCHITECTURE: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")
_UNLIKE: Final = re.compile(r"[^a-z0-9+]")

_BEFORE_STEM: Final = re.compile(r"lib|python3?-|py3-|node-|golang-|ruby-|perl-|php-")
_AFTER_STEM: Final = frozenset(
    {"dev", "devel", "bin", "cli", "client", "util", "utils", "tool", "tools"}
    | {"common", "lib", "libs", "core", "server", "doc"}
)
_RPM_ARCHITECTURES: Final = frozenset(
    {"x86_64", "aarch64", "i686", "i386", "noarch", "ppc64le", "s390x", "armv7hl", "riscv64"}
)
_INDEPENDENT: Final = frozenset({"all", "any", "noarch", "native"})
_SAME: Final = {"x86_64": "amd64", "aarch64": "arm64", "i686": "i386", "x86": "i386"}


class MalformedQueryError(ValueError):
    """This can be the name of no package."""


@dataclass(frozen=True, slots=True)
class Query:
    """One wanted package: ``name``, ``name=version``, ``name:architecture`` or both of them."""

    name: str
    version: str | None = None
    architecture: str | None = None

    @classmethod
    def parse(cls, text: str) -> Query:
        """Return ``text`` taken apart.

        :raises MalformedQueryError: it names no package in any distribution.
        """
        name, equals, version = text.strip().partition("=")
        name, colon, architecture = name.partition(":")
        query = cls(name, version if equals else None, architecture.lower() if colon else None)
        if not query.is_well_formed:
            raise MalformedQueryError(text)
        return query

    @property
    def is_well_formed(self) -> bool:
        """Whether every part could be what it is meant to be."""
        return (
            is_folded_name(self.folded)
            and (self.version is None or _VERSION.fullmatch(self.version) is not None)
            and (
                self.architecture is None or _ARCHITECTURE.fullmatch(self.architecture) is not None
            )
        )

    @property
    def folded(self) -> str:
        """The name in lower case."""
        return self.name.lower()

    def without_suffix(self) -> Query | None:
        """Return the query that ``glibc.i686`` is for dnf; None when it is not one."""
        name, dot, suffix = self.name.rpartition(".")
        if not dot or not name or self.architecture or suffix.lower() not in _RPM_ARCHITECTURES:
            return None
        return Query(name, self.version, suffix.lower())


def is_folded_name(text: str) -> bool:
    """Tell whether ``text`` in lower case could be the name of a package somewhere."""
    return len(text) <= MAX_QUERY_LENGTH and _FOLDED.fullmatch(text) is not None


def is_package_name(text: str, family: OsFamily) -> bool:
    """Tell whether a blueprint can hold ``text``, and the family's package manager takes it."""
    length, package_id = _package_id()
    return (
        len(text) <= length
        and package_id.fullmatch(text) is not None
        and family.package_name.fullmatch(text) is not None
    )


@cache
def _package_id() -> tuple[int, re.Pattern[str]]:
    """Return how long an id of a blueprint's package may be, and of what it is."""
    # Blueprints come with pydantic, which most processes that know the models never need.
    from workspaces.blueprint.grammar import PACKAGE_ID_LENGTH, PACKAGE_ID_PATTERN

    return PACKAGE_ID_LENGTH, re.compile(PACKAGE_ID_PATTERN)


def architecture_fits(wanted: str | None, native: str) -> bool:
    """Tell whether a package of the index ``native`` is one for the architecture ``wanted``."""
    if wanted is None or wanted in _INDEPENDENT:
        return True
    return _SAME.get(wanted, wanted) == _SAME.get(native, native)


def offered_version(wanted: str, versions: tuple[str, ...], family: OsFamily) -> str | None:
    """Return the version of ``versions`` that the family's package manager takes ``wanted`` for.

    Only dnf takes parts of a version: without its release, and without its epoch.
    """
    for version in versions:
        accepted = {version}
        if family.package_manager == "dnf":
            plain = version.partition(":")[2] or version
            accepted |= {plain, version.rpartition("-")[0], plain.rpartition("-")[0]}
        if wanted in accepted:
            return version
    return None


def squeezed(folded: str) -> str:
    """Return a folded name without what people put differently: ``docker_compose.io``."""
    return _UNLIKE.sub("", folded)


def stem(folded: str) -> str:
    """Return a folded name without what distributions put around it.

    ``ssl`` of ``libssl-dev``, ``requests`` of ``python3-requests``.
    """
    before = _BEFORE_STEM.match(folded)
    rest = (folded[before.end() :] if before else folded) or folded
    while True:
        shorter = rest.rstrip("0123456789.").removesuffix("-")
        head, dash, word = shorter.rpartition("-")
        if dash and word in _AFTER_STEM:
            shorter = head
        if not shorter or shorter == rest:
            return rest
        rest = shorter


def one_slip_apart(one: str, other: str) -> bool:
    """Tell whether a character more, less or different, or two swapped, makes one the other."""
    if abs(len(one) - len(other)) > 1:
        return False
    first = 0
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            break
        first += 1
    rest, their_rest = one[first:], other[first:]
    if len(one) == len(other):
        return rest[1:] == their_rest[1:] or (
            rest[2:] == their_rest[2:] and rest[:2] == their_rest[1::-1]
        )
    return rest[1:] == their_rest if len(one) > len(other) else rest == their_rest[1:]
