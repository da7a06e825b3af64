"""What is counted of each minute for the admin's charts: how long starts took, and what failed.

Both read the events of workspaces from where ids of that minute begin: ids are in the order of
time, so the question costs the same however many events there ever were.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db.models import Count, F, QuerySet

from workspaces.models import WorkspaceEvent

_CLOCKS_APART = timedelta(minutes=5)
"""How far the clock of the process that made an id may be from that of the database."""


def _first_id(moment: datetime) -> uuid.UUID:
    return uuid.UUID(int=int(moment.timestamp() * 1000) << 80)


def _events(begin: datetime, end: datetime, *types: str) -> QuerySet[WorkspaceEvent]:
    return WorkspaceEvent.objects.filter(
        id__gte=_first_id(begin - _CLOCKS_APART),
        id__lt=_first_id(end + _CLOCKS_APART),
        occurred_at__gte=begin,
        occurred_at__lt=end,
        type__in=types,
    )


def start_seconds(begin: datetime, end: datetime) -> list[float]:
    """Return the seconds from request to ready of each start that came to an end in that time."""
    ready = _events(begin, end, WorkspaceEvent.Type.RUNTIME_RUNNING)
    took = ready.values_list(F("occurred_at") - F("attempt__created_at"), flat=True)
    return sorted(round(each.total_seconds(), 3) for each in took)


def failures(begin: datetime, end: datetime) -> dict[str, int]:
    """Return how many attempts failed in that time, by code; one counts once for each code."""
    types = WorkspaceEvent.Type
    failed = _events(begin, end, types.ATTEMPT_FAILED, types.RUNTIME_FAILED)
    by_code = failed.values_list("data__errorCode").annotate(Count("attempt", distinct=True))
    return {code or "unknown": number for code, number in by_code.order_by()}
