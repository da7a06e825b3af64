"""The stream of an owner: how all the workspaces stand, and what happens to them."""

from __future__ import annotations

import uuid

from django.db.models import QuerySet
from rest_framework.request import Request

from controlplane.http.server_sent_events import (
    EventSource,
    cursor_of,
    invalid_cursor,
    stream_answer,
)
from controlplane.http.stream_answers import Piece, StreamAnswer, Topic
from runs.streaming.event_frames import json_frame, shown_workspaces
from runs.streaming.of_run import LATEST
from runs.streaming.of_workspace import WORKSPACE_EVENTS, event_frame, require_given
from workspaces.event_order import events_behind, last_position, place_events
from workspaces.models import Workspace

AT_ONCE = 10
"""Workspaces or events in one piece: each is well below 2 KiB."""
MAX_POSITION_DIGITS = 18


def stream_owner(request: Request, owner_user_id: str, after: str | None) -> StreamAnswer:
    """Return the answer that follows all workspaces of an owner.

    Raises ``ValidationFailed`` and ``ServiceUnavailable``.
    """
    cursor = cursor_of(request, after)
    if cursor not in (None, LATEST):
        sound = cursor.isascii() and cursor.isdecimal() and len(cursor) <= MAX_POSITION_DIGITS
        if not sound:
            raise invalid_cursor(request, "The id of an event of an owner is a decimal number.")
        require_given(request, int(cursor))
        return stream_answer(request, OwnerSource(owner_user_id, int(cursor), all_first=False))
    while place_events():
        pass
    # Taken before anything is shown: what changes meanwhile is told again, and nothing is missed.
    source = OwnerSource(owner_user_id, last_position(), all_first=cursor is None)
    return stream_answer(request, source)


class OwnerSource(EventSource):
    """Events of all workspaces of an owner, each behind how its workspace stands.

    With ``all_first`` it begins with how each workspace stands that is not deleted.
    """

    def __init__(self, owner_user_id: str, position: int, *, all_first: bool) -> None:
        self.topics = frozenset({Topic(WORKSPACE_EVENTS, f"owner {owner_user_id}")})
        self._owner = owner_user_id
        self._position = position
        self._shown: uuid.UUID | None = None
        self._showing = all_first

    def read(self, room: int, since: float) -> Piece:
        """Return statuses, or events."""
        if self._showing:
            return self._all()
        while place_events():
            pass
        events = events_behind(self._position, owner_user_id=self._owner)[:AT_ONCE]
        if not events:
            return Piece()
        # Before the events, whose places say that all of it was told.
        concerned = {event.workspace_id for event in events}
        told = self._statuses(list(self._rows().filter(pk__in=concerned)))
        for event in events:
            assert event.position is not None
            told += event_frame(event, str(event.position))
            self._position = event.position
        return Piece(told, more=True)

    def _all(self) -> Piece:
        rows = self._rows().filter(deleted_at__isnull=True).order_by("pk")
        if self._shown is not None:
            rows = rows.filter(pk__gt=self._shown)
        found = list(rows[:AT_ONCE])
        if found:
            self._shown = found[-1].pk
            return Piece(self._statuses(found), more=True)
        self._showing = False
        # Who is cut off before this has no place to go on at, and is shown all of them again.
        members = {"ownerUserId": self._owner}
        return Piece(json_frame("current", members, id=str(self._position)), more=True)

    def _rows(self) -> QuerySet[Workspace]:
        rows = Workspace.objects.owned_by(self._owner)
        # Blueprints may be large, and no status shows them.
        return rows.select_related("latest_sandbox__latest_attempt").defer(
            "latest_sandbox__spec", "latest_sandbox__latest_attempt__spec"
        )

    def _statuses(self, rows: list[Workspace]) -> bytes:
        return b"".join(json_frame("status", members) for members in shown_workspaces(rows))
