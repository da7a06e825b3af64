"""Fedora: what ``dnf repoquery`` says of each package, with its provides on lines that follow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .listing import Candidates, Listing, MalformedIndexError, Offer

_BEGINNING: Final = "svc-package|"
_BETWEEN_PROVIDES: Final = re.compile(r"\n|, ")


def read_dnf(listing: Listing) -> Iterator[Offer]:
    """Yield the newest of each package, then the other versions that dnf could install.

    A version is ``[epoch:]version-release``, without an epoch of 0, as rpm shows it.
    """
    candidates = Candidates()
    for section, text in _records(listing):
        try:
            name, epoch, version, release, repository, provides = text.split("|", 5)
        except ValueError:
            raise MalformedIndexError("dnf described a package in words not asked for.") from None
        whole = f"{version}-{release}" if epoch in {"", "0"} else f"{epoch}:{version}-{release}"
        if section == "candidates":
            candidates.add(name, whole)
            yield Offer(name, whole, repository, _provided(provides, name))
        elif candidates.is_new(name, whole):
            yield Offer(name, whole, repository)


def _records(listing: Listing) -> Iterator[tuple[str, str]]:
    """Yield each package's text, which may be of many lines."""
    record: list[str] = []
    within = ""
    for section, line in listing:
        if line.startswith(_BEGINNING):
            if record:
                yield within, "\n".join(record)
            record, within = [line.removeprefix(_BEGINNING)], section
        elif record:
            record.append(line)
        elif line:
            raise MalformedIndexError("dnf said something before its first package.")
    if record:
        yield within, "\n".join(record)


def _provided(text: str, name: str) -> tuple[str, ...]:
    """Return the plain names among ``webserver``, ``perl(X)``, ``lib.so.1()(64bit)``, ``a = 1``."""
    names = (item.strip().partition(" ")[0] for item in _BETWEEN_PROVIDES.split(text))
    return tuple(dict.fromkeys(n for n in names if n and "(" not in n and n != name))
