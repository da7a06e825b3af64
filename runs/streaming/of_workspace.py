"""The stream of one workspace: how it stands, what happened to it, and what its build prints."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.http.server_sent_events import (
    EventSource,
    cursor_of,
    invalid_cursor,
    stream_answer,
)
from controlplane.http.stream_answers import Channel, Piece, Topic
from runs.models import Run, RunHead
from runs.streaming.event_frames import Statuses, json_frame, removed_frame, shown_workspaces
from runs.streaming.event_pages import PAGES, Page, cut
from runs.streaming.of_run import LATEST, RUN_EVENTS
from workspaces.event_order import (
    events_behind,
    last_given_position,
    last_position,
    place_events,
)
from workspaces.models import EVENTS_CHANNEL, WorkspaceEvent
from workspaces.presentation import present_events
from workspaces.queries import get_workspace_with_latest
from workspaces.serializers import EventSerializer

_PLACE = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})(-end)?", re.ASCII)
_OUTPUT = re.compile(rb"id: (\d+)\nevent: output\n(data: [^\n]*\n\n)")


def _keys(payload: str) -> Collection[str]:
    told = json.loads(payload)
    return [told["workspaceId"], f"owner {told['ownerUserId']}"]


WORKSPACE_EVENTS = Channel(EVENTS_CHANNEL, _keys)
_STATUSES = Statuses()


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the stream of a workspace.

    Behind the event at ``position``, and behind event ``sequence`` of the boot run ``run``, a
    number, with all boot runs before it. ``ended``: behind everything.
    """

    position: int = 0
    run: int = 0
    sequence: int = 0
    ended: bool = False

    def __str__(self) -> str:
        end = "-end" if self.ended else ""
        return f"{self.position}-{self.run}-{self.sequence}{end}"


def stream_workspace(
    request: Request, workspace_id: uuid.UUID, *, owner_user_id: str | None, after: str | None
) -> HttpResponseBase:
    """Return the answer that follows a workspace from where the request says.

    204 to whoever has seen its end. Raises ``NotFound``, ``ValidationFailed`` and
    ``ServiceUnavailable``.
    """
    get_workspace_with_latest(workspace_id, owner_user_id=owner_user_id)
    place = _place(request, workspace_id, cursor_of(request, after))
    if place.ended:
        return Response(status=204)
    return stream_answer(request, WorkspaceSource(workspace_id, place))


def _place(request: Request, workspace_id: uuid.UUID, cursor: str | None) -> Place:
    boots = Run.objects.filter(workspace_id=workspace_id, mode=Run.Mode.BOOT)
    if cursor in (None, LATEST):
        run = boots.order_by("-number").values_list("number", flat=True).first() or 0
        if cursor is None:
            return Place(run=run)
        while place_events():
            pass
        head = RunHead.objects.filter(pk=run).only("last_sequence").first()
        return Place(last_position(), run, 0 if head is None else head.last_sequence)
    found = _PLACE.fullmatch(cursor)
    if found is not None:
        position, number, sequence, end = found.groups()
        place = Place(int(position), int(number), int(sequence), end is not None)
        if place.run == 0 or boots.filter(number=place.run).exists():
            _require_reached(request, place)
            return place
    raise invalid_cursor(request, "This is not an id of this workspace's stream.")


def _require_reached(request: Request, place: Place) -> None:
    """Raise ``ValidationFailed`` for a place behind what there is: events would be passed over."""
    require_given(request, place.position)
    head = RunHead.objects.filter(pk=place.run).only("last_sequence").first()
    last = 0 if head is None else head.last_sequence
    if place.run and place.sequence > last:
        detail = f"The record of this boot has no event {place.sequence}; its last is {last}."
        raise invalid_cursor(request, detail)


class WorkspaceSource(EventSource):
    """The stream of one workspace behind ``place``, with its ``status`` whenever that changes."""

    def __init__(self, workspace_id: uuid.UUID, place: Place) -> None:
        self._workspace_id = workspace_id
        self._place = place
        self._run_id: uuid.UUID | None = None
        self._sent = 0
        """Bytes of the output behind the place that were given already."""
        self._begun_at = 0.0
        """When the page was read of which they are: an earlier one may be shorter."""
        self._looked_at = -1.0
        self._status = b""
        self._deleted = False
        self._complete = False
        """Whether the records of all boot runs have ended and are told."""
        self.topics = self._topics()

    def read(self, room: int, since: float) -> Piece:
        """Return events, a status or output, in this order."""
        if not self._sent and self._looked_at < since:
            looked_at = time.monotonic()
            piece = self._events(room) or self._told_status(since)
            if piece is not None:
                return piece
            self._looked_at = looked_at
        return self._output(room, since) or self._end()

    def _topics(self) -> frozenset[Topic]:
        run = Topic(RUN_EVENTS, str(self._place.run))
        return frozenset({Topic(WORKSPACE_EVENTS, str(self._workspace_id)), run})

    def _events(self, room: int) -> Piece | None:
        while place_events():
            pass
        told = b""
        for event in events_behind(self._place.position, workspace_id=self._workspace_id):
            assert event.position is not None
            place = replace(self._place, position=event.position)
            data = event_frame(event, str(place))
            if told and len(told) + len(data) > room:
                break
            told, self._place = told + data, place
        return Piece(told, more=True) if told else None

    def _told_status(self, since: float) -> Piece | None:
        found = _STATUSES.find(self._workspace_id, since)
        if found is None:
            began = time.monotonic()
            row = get_workspace_with_latest(self._workspace_id, owner_user_id=None)
            (members,) = shown_workspaces([row])
            found = json_frame("status", members), members["status"] == "deleted"
            _STATUSES.keep(self._workspace_id, began, found)
        status, self._deleted = found
        if status == self._status:
            return None
        self._status = status
        return Piece(status, more=True)

    def _output(self, room: int, since: float) -> Piece | None:
        """Return what the boot runs have printed behind the place; None: nothing more so far."""
        self._complete = False
        while self._run_id is not None or self._begin(self._place.run):
            assert self._run_id is not None
            place = self._place
            page = PAGES.page(
                *(self._run_id, place.run, place.sequence),
                since=self._begun_at if self._sent else since,
            )
            if page is None:
                return None
            if page.removed_at is not None and place.sequence < page.last:
                return self._removed(page, page.removed_at)
            if page.data and (output := self._shown(page)):
                return self._cut(page, output, room)
            if page.through > place.sequence:
                self._place = replace(place, sequence=page.through)
            elif not page.sealed or page.through < page.last:
                return None
            elif not self._begin(place.run + 1):
                break
        self._complete = True
        return None

    def _begin(self, least: int) -> bool:
        """Go to the first boot run from number ``least`` on; False when there is none."""
        boots = Run.objects.filter(workspace_id=self._workspace_id, mode=Run.Mode.BOOT)
        run = boots.filter(number__gte=least).order_by("number").only("number").first()
        if run is None:
            return False
        if run.number != self._place.run:
            self._place = replace(self._place, run=run.number, sequence=0)
        self._run_id = run.pk
        self.topics = self._topics()
        return True

    def _removed(self, page: Page, removed_at: datetime) -> Piece:
        """Say that retention has removed the record of a boot run, and go on behind it."""
        if self._sent:
            # In the middle of an event: the client asks again, and is told then.
            return Piece(ended=True)
        told = removed_frame(removed_at, after=str(self._place), runId=str(self._run_id))
        self._place = replace(self._place, sequence=page.last)
        return Piece(f"id: {self._place}\n".encode() + told, more=True)

    def _end(self) -> Piece:
        """Return the end of a workspace that was deleted; nothing so far for any other."""
        if not (self._deleted and self._complete):
            return Piece()
        _, _, shown = self._status.partition(b"\n")
        end = replace(self._place, ended=True)
        return Piece(f"id: {end}\nevent: end\n".encode() + shown, ended=True)

    def _shown(self, page: Page) -> bytes:
        """Return the output of a page as this stream tells it."""
        place = f"{self._place.position}-{self._place.run}".encode()
        return b"".join(
            b"id: %b-%b\nevent: output\n%b" % (place, sequence, data)
            for sequence, data in _OUTPUT.findall(page.data)
        )

    def _cut(self, page: Page, output: bytes, room: int) -> Piece:
        data = cut(output, self._sent, room)
        if not self._sent:
            self._begun_at = page.read_at
        self._sent += len(data)
        if self._sent == len(output):
            self._place, self._sent = replace(self._place, sequence=page.through), 0
        return Piece(data, more=True, whole=data.endswith(b"\n\n"))


def require_given(request: Request, position: int) -> None:
    """Raise ``ValidationFailed`` for a position that no event can have had yet."""
    last = last_given_position()
    if position > last:
        raise invalid_cursor(request, f"There is no event at {position}; the last is at {last}.")


def event_frame(event: WorkspaceEvent, place: str) -> bytes:
    """Return what happened to a workspace as an event at ``place``."""
    (members,) = present_events([event])
    return json_frame("event", EventSerializer(members).data, id=place)
