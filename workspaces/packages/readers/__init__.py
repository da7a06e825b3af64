"""Readers of the distributions' indexes, one for each package manager.

A reader has two halves. A script of that name beside it (``apt.sh``) runs in a container of the
family's base image and asks the package manager; a function makes :class:`Offer` values of what the
script printed. Between the two is the little protocol of :mod:`.listing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from .apk import read_apk
from .apt import read_apt
from .dnf import read_dnf
from .listing import MAX_LINE, Listing, MalformedIndexError, Offer
from .pacman import read_pacman

Reader = Callable[[Listing], Iterator[Offer]]

READERS: Final[Mapping[str, Reader]] = MappingProxyType(
    {"apt": read_apt, "dnf": read_dnf, "pacman": read_pacman, "apk": read_apk}
)

__all__ = [
    "MAX_LINE",
    "READERS",
    "Listing",
    "MalformedIndexError",
    "Offer",
    "read_listing",
    "reading_script",
]


def read_listing(package_manager: str, lines: Iterable[str]) -> tuple[Listing, Iterator[Offer]]:
    """Return the listing that a script printed and what it offers, read as it is asked for.

    :raises MalformedIndexError: at once or while reading: this is not a whole listing.
    """
    listing = Listing(lines)
    return listing, READERS[package_manager](listing)


def reading_script(package_manager: str) -> bytes:
    """Return the script that prints the listing of a package manager."""
    return files(__package__).joinpath(f"{package_manager}.sh").read_bytes()
