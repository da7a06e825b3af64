"""Arch Linux: the information pages of ``pacman -Si``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .listing import Listing, Offer

_COMPARISON: Final = re.compile(r"[<>=]")


def read_pacman(listing: Listing) -> Iterator[Offer]:
    """Yield each package from the first repository that has it: the one pacman installs from."""
    seen: set[str] = set()
    for fields in _pages(listing):
        name, version = fields.get("Name", ""), fields.get("Version", "")
        if not name or not version or name in seen:
            continue
        seen.add(name)
        provides = [item for item in fields.get("Provides", "").split() if item != "None"]
        yield Offer(
            name,
            version,
            fields.get("Repository", ""),
            tuple(dict.fromkeys(_COMPARISON.split(item)[0] for item in provides)),
        )


def _pages(listing: Listing) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for _, line in listing:
        key, colon, value = line.partition(" : ")
        if not line.strip():
            if fields:
                yield fields
            fields = {}
        elif colon and not line.startswith(" "):
            fields[key.strip()] = value.strip()
    if fields:
        yield fields
