"""The stream of one run: every event of its record, and its end."""

from __future__ import annotations

import json

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
from runs.presentation import present_run
from runs.record import store
from runs.record.reading.timeline import MAX_SEQUENCE
from runs.streaming.event_frames import json_frame, removed_frame
from runs.streaming.event_pages import PAGES, Page, cut

RUN_EVENTS = Channel(store.CHANNEL, lambda payload: [str(json.loads(payload)["runNumber"])])
LATEST = "latest"


def stream_run(request: Request, run: Run, after: str | None = None) -> HttpResponseBase:
    """Return the answer that follows ``run`` from where the request says, or from ``after``.

    204, which tells browsers to stay away, to whoever has seen the end. Raises
    ``ValidationFailed`` for a place that is none of this record, and ``ServiceUnavailable``.
    """
    place = _place(request, run, cursor_of(request, after))
    if place is None:
        return Response(status=204)
    return stream_answer(request, RunSource(run, after=place))


def _place(request: Request, run: Run, cursor: str | None) -> int | None:
    """Return the sequence to go on behind; None when that is the end."""
    if cursor is None:
        return 0
    head = RunHead.objects.filter(pk=run.number).only("last_sequence", "sealed_at").first()
    last = 0 if head is None else head.last_sequence
    ended = run.status in Run.TERMINAL if head is None else head.sealed_at is not None
    if cursor == LATEST:
        return last
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= len(str(MAX_SEQUENCE))):
        raise invalid_cursor(request, "The id of an event of a run is a decimal number.")
    place = int(cursor)
    if ended and place == last + 1:
        return None
    if place > last:
        raise invalid_cursor(request, f"The record has no event {place}; its last is {last}.")
    return place


class RunSource(EventSource):
    """The events of one run behind the event ``after``, in order, then its end."""

    def __init__(self, run: Run, *, after: int = 0) -> None:
        self.topics = frozenset({Topic(RUN_EVENTS, str(run.number))})
        self._run_id = run.pk
        self._number = run.number
        self._after = after
        self._sent = 0
        """Bytes of the page behind ``_after`` that were given already."""
        self._begun_at = 0.0
        """When the page was read of which they are: an earlier one may be shorter."""

    def read(self, room: int, since: float) -> Piece:
        """Return the events that follow."""
        while True:
            # A page that was begun goes on the same in every one that was read later.
            page = PAGES.page(
                *(self._run_id, self._number, self._after),
                since=self._begun_at if self._sent else since,
            )
            if page is None:
                return self._without_record()
            if page.removed_at is not None:
                return self._removed(page)
            if page.data:
                return self._cut(page, room)
            if page.through == self._after:
                return self._end(page.last) if self._ends(page) else Piece()
            self._after = page.through

    def _cut(self, page: Page, room: int) -> Piece:
        data = cut(page.data, self._sent, room)
        if not self._sent:
            self._begun_at = page.read_at
        self._sent += len(data)
        if self._sent == len(page.data):
            self._after, self._sent = page.through, 0
        return Piece(data, more=True, whole=data.endswith(b"\n\n"))

    def _ends(self, page: Page) -> bool:
        return page.sealed and page.through >= page.last

    def _end(self, last: int) -> Piece:
        run = Run.objects.get(number=self._number)
        return Piece(json_frame("end", present_run(run), id=str(last + 1)), ended=True)

    def _without_record(self) -> Piece:
        run = Run.objects.get(number=self._number)
        if run.status not in Run.TERMINAL:
            return Piece()
        return Piece(json_frame("end", present_run(run), id="1"), ended=True)

    def _removed(self, page: Page) -> Piece:
        """Return what there is to say of a record that retention has removed."""
        if self._sent:
            # In the middle of an event: the client asks again, and is told then.
            return Piece(ended=True)
        assert page.removed_at is not None
        told = removed_frame(page.removed_at, after=str(self._after))
        end = self._end(page.last)
        return Piece(told + end.data, ended=True)
