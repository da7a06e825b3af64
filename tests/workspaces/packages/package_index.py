"""Package indexes for tests, written the way a reading writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.conf import settings

from workspaces.families import FAMILIES
from workspaces.packages.index_store import replace_index
from workspaces.packages.readers import Offer

ARCHITECTURES = {"debian": "amd64", "ubuntu": "amd64"}


def write_index(
    family: str,
    packages: Mapping[str, Sequence[str]],
    *,
    provides: Mapping[str, Sequence[str]] | None = None,
) -> int:
    """Make ``packages`` (versions by name, the default first) the index of a family.

    ``provides`` has the names that a package stands for besides its own.
    """
    offers = [
        Offer(name, version, "main", tuple((provides or {}).get(name, ())))
        for name, versions in packages.items()
        for version in versions
    ]
    return replace_index(
        FAMILIES[family],
        offers,
        architecture=ARCHITECTURES.get(family, "x86_64"),
        base_image=settings.SVC_BASE_IMAGES[family],
    )
