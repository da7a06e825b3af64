"""The order in which streams show the events of workspaces: one that never changes afterwards.

Events are given their positions by whoever reads a stream, one at a time and only those that can be
seen. So whoever has seen a position has seen, or can see, every lower one that there will ever be.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.db import connection, transaction
from django.db.models import Max

from controlplane.database.locks import lock_until_commit
from workspaces.models import Workspace, WorkspaceEvent

PLACED_AT_ONCE = 1_000
SHOWN_AT_ONCE = 50

_PLACE = """
    WITH unplaced AS MATERIALIZED (
        SELECT id FROM workspaces_workspaceevent WHERE position IS NULL ORDER BY id LIMIT %s
    ), placed AS MATERIALIZED (
        SELECT id, nextval('workspace_event_position_seq') AS position FROM unplaced
    )
    UPDATE workspaces_workspaceevent AS event SET position = placed.position
    FROM placed WHERE event.id = placed.id
"""

_LAST_GIVEN = """
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM workspace_event_position_seq
"""


def place_events() -> bool:
    """Give positions to events that have none; tell whether there are some left.

    To be called outside of transactions.
    """
    if not WorkspaceEvent.objects.filter(position__isnull=True).exists():
        return False
    with transaction.atomic():
        lock_until_commit("workspace-event-positions")
        with connection.cursor() as cursor:
            cursor.execute(_PLACE, [PLACED_AT_ONCE])
            return bool(cursor.rowcount == PLACED_AT_ONCE)


def last_position() -> int:
    """Return the highest position that there is; 0 for none."""
    found = WorkspaceEvent.objects.aggregate(last=Max("position"))["last"]
    return int(found or 0)


def last_given_position() -> int:
    """Return the highest position that was ever given, also to events that are gone; 0 for none.

    Whoever says a higher one has it from another database, as before a restore.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LAST_GIVEN)
        (last,) = cursor.fetchone()
    return int(last)


def events_behind(
    position: int, *, workspace_id: uuid.UUID | None = None, owner_user_id: str | None = None
) -> Sequence[WorkspaceEvent]:
    """Return the next events of a workspace, or of an owner, in the order of their positions."""
    named: dict[str, Any] = {"workspace_id": workspace_id}
    if workspace_id is None:
        named = {"workspace_id__in": Workspace.objects.owned_by(owner_user_id).values("pk")}
    rows = WorkspaceEvent.objects.filter(position__gt=position, **named)
    return list(rows.order_by("position")[:SHOWN_AT_ONCE])
