"""``GET /v1/packages/resolve``: what one query means, in the wanted family and in the others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.conf import settings

from workspaces.families import FAMILIES

from .aliases import canonical_ids
from .facts import Facts, gather, near_names
from .names import MalformedQueryError, Query
from .resolver import Reason, Resolution, Source, Status, resolve, with_similar
from .standardization import index_unavailable

UNBUILT: Final = {"nix": "Nix"}
"""Families that clients may ask about and no image is made of, with their titles."""


def look_up(text: str, os_family: str) -> dict[str, Any]:
    """Return the answer to ``text``, by the names of its serializer.

    :raises BadGateway: the answer takes the family's index, and that was never read.
    :raises KeyError: there is no such family, built or unbuilt.
    """
    requested = text.strip()
    answer: dict[str, Any] = {"requested": requested, "normalized": requested.lower()}
    try:
        query = Query.parse(requested)
    except MalformedQueryError:
        return {
            **answer,
            "status": Status.INVALID,
            "source": Source.INDEX.for_clients,
            "origin": Source.INDEX,
            "reason": Reason.NAME_INVALID,
            "detail": "A package name consists of letters, digits and . _ + - @, optionally "
            "followed by :architecture and =version.",
            "packages": [],
            "os_support": {family: {"supported": False} for family in (*FAMILIES, *UNBUILT)},
            "alternatives": [],
        }
    facts = gather([query], FAMILIES)
    by_family = {family: resolve(query, family, facts) for family in FAMILIES}
    by_family |= {family: _unbuilt(title, by_family) for family, title in UNBUILT.items()}
    found = _settle(query, os_family, by_family, facts)
    if found.reason == Reason.INDEX_UNREAD:
        raise index_unavailable(os_family)
    answer |= {
        "status": found.status,
        "source": found.source.for_clients,
        "origin": found.source,
        "packages": found.packages,
        "os_support": {family: _support(other) for family, other in by_family.items()},
        "alternatives": [{"project_name": name} for name in found.alternatives],
    }
    if found.packages:
        answer["selected_project"] = found.packages[0].name
    if found.source == Source.ALIAS:
        answer["canonical_id"] = canonical_ids().get(query.folded)
    if found.reason is not None:
        answer |= {"reason": found.reason, "detail": found.detail}
    if (index := facts.indexes.get(os_family)) is not None:
        answer["fetched_at"] = index.read_at
        answer["expires_at"] = index.read_at + timedelta(milliseconds=settings.PACKAGE_INDEX_TTL_MS)
    return answer


def _settle(
    query: Query, os_family: str, by_family: dict[str, Resolution], facts: Facts
) -> Resolution:
    """Return the answer of the wanted family, or what is nearest to one."""
    found = by_family[os_family]
    if found.reason not in {Reason.UNKNOWN, Reason.NAME_INVALID}:
        return found
    if os_family not in facts.indexes:
        # Not a name of this family, and nothing to look for similar ones in.
        return found
    found = with_similar(found, query, near_names(query, os_family))
    elsewhere = _packaged_for(by_family)
    if found.status == Status.NOT_FOUND and elsewhere:
        return Resolution(
            Status.UNSUPPORTED,
            Source.INDEX,
            reason=Reason.NOT_PACKAGED,
            detail=found.detail + elsewhere,
        )
    return found


def _unbuilt(title: str, by_family: dict[str, Resolution]) -> Resolution:
    """Return the answer of a family that no image is made of."""
    return Resolution(
        Status.UNSUPPORTED,
        Source.INDEX,
        reason=Reason.OS_UNSUPPORTED,
        detail=f"Images of {title} cannot be built here.{_packaged_for(by_family)}",
    )


def _packaged_for(by_family: dict[str, Resolution]) -> str:
    titles = [FAMILIES[name].title for name, other in by_family.items() if other.is_resolved]
    return f" It is packaged for {', '.join(titles)}." if titles else ""


def _support(found: Resolution) -> dict[str, Any]:
    if not found.is_resolved:
        return {"supported": False, "status": found.reason}
    first = found.packages[0]
    return {
        "supported": True,
        "package_name": first.name,
        "project_name": first.name,
        "version": first.offered,
        "repo": first.repository,
    }
