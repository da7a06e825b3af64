"""``GET /v1/packages/resolve``: what one query means, in the wanted family and in the others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings

from workspaces.families import FAMILIES

from .aliases import canonical_ids
from .facts import Facts, gather, near_names
from .names import MalformedQueryError, Query
from .resolver import Reason, Resolution, Source, Status, resolve, with_similar
from .standardization import index_unavailable


def look_up(text: str, os_family: str) -> dict[str, Any]:
    """Return the answer to ``text``, by the names of its serializer.

    :raises BadGateway: the answer takes the family's index, and that was never read.
    :raises KeyError: there is no such family.
    """
    requested = text.strip()
    answer: dict[str, Any] = {"requested": requested, "normalized": requested.lower()}
    try:
        query = Query.parse(requested)
    except MalformedQueryError:
        return {
            **answer,
            "status": Status.INVALID,
            "source": Source.INDEX,
            "reason": Reason.NAME_INVALID,
            "detail": "A package's name is letters, digits and . _ + - @, perhaps with "
            ":architecture and =version behind it.",
            "packages": [],
            "os_support": {family: {"supported": False} for family in FAMILIES},
            "alternatives": [],
        }
    facts = gather([query], FAMILIES)
    by_family = {family: resolve(query, family, facts) for family in FAMILIES}
    found = _settle(query, os_family, by_family, facts)
    if found.reason == Reason.INDEX_UNREAD:
        raise index_unavailable(os_family)
    answer |= {
        "status": found.status,
        "source": found.source,
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
    elsewhere = [FAMILIES[name].title for name, other in by_family.items() if other.is_resolved]
    if found.status == Status.NOT_FOUND and elsewhere:
        return Resolution(
            Status.UNSUPPORTED,
            Source.INDEX,
            reason=Reason.NOT_PACKAGED,
            detail=f"{found.detail} It is packaged for {', '.join(elsewhere)}.",
        )
    return found


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
