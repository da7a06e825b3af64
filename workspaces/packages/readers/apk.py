"""Alpine Linux: the paragraphs of ``APKINDEX`` (apk-package(5), the letters of version 2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .listing import Listing, Offer

_COMPARISON: Final = re.compile(r"[<>=~]")


def read_apk(listing: Listing) -> Iterator[Offer]:
    """Yield each package; what a package provides besides names (``so:``, ``cmd:``) is left out.

    A release of Alpine has one version of a package; of several, the first is the one offered.
    """
    seen: set[tuple[str, str]] = set()
    for fields in _paragraphs(listing):
        name, version = fields.get("P", ""), fields.get("V", "")
        if not name or not version or (name, version) in seen:
            continue
        if fields.get("A", "noarch") not in {listing.architecture, "noarch"}:
            continue
        seen.add((name, version))
        provided = (_COMPARISON.split(item)[0] for item in fields.get("p", "").split())
        yield Offer(
            name, version, provides=tuple(dict.fromkeys(n for n in provided if ":" not in n))
        )


def _paragraphs(listing: Listing) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for _, line in listing:
        if line:
            key, _, value = line.partition(":")
            fields[key] = value.strip()
        elif fields:
            yield fields
            fields = {}
    if fields:
        yield fields
