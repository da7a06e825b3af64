"""Server-sent events: how they are framed, and where a client wants to go on.

``id:`` of an event is the place behind it. A client goes on there with ``?after=`` or the header
``Last-Event-ID``, which browsers send by themselves. Both mean the same, and the header counts
where both are given, because a browser repeats the address that it began with.
"""

from __future__ import annotations

import json
import re
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers
from rest_framework.request import Request

from controlplane.errors import ControlPlaneError, Fault, ValidationFailed
from controlplane.http.problems import problem
from controlplane.http.serializers import QuerySerializer
from controlplane.http.stream_answers import Source, StreamAnswer, require_stream_room

CONTENT_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
HEADER = "Last-Event-ID"
RETRY_MS = 1_000
MAX_CURSOR = 4_096
_LINE_END = re.compile(r"\r\n|\n|\r")


LAST_EVENT_ID = OpenApiParameter(
    HEADER,
    str,
    OpenApiParameter.HEADER,
    description="Like `after`, and takes precedence over it; browsers send it when they reconnect.",
)
ENDLESS_RESPONSES: dict[Any, Any] = {
    (200, CONTENT_TYPE): OpenApiResponse(
        OpenApiTypes.STR,
        description="Server-sent events, until the stream ends or the client disconnects.",
    )
}
STREAM_RESPONSES: dict[Any, Any] = {
    **ENDLESS_RESPONSES,
    204: OpenApiResponse(description="The client has already seen the end."),
}


class StreamParameters(QuerySerializer):
    # The query of a stream.
    after = serializers.CharField(
        required=False,
        max_length=MAX_CURSOR,
        help_text="The `id` of the last event received: the events after it are sent. `latest`: "
        "only "
        "new events. The header `Last-Event-ID` takes precedence.",
    )


def frame(event: str, data: str, *, id: str | None = None) -> bytes:
    """Return one event. ``data`` is text of any lines; ``id`` has no line ends."""
    name = f"id: {id}\nevent: {event}\n" if id is not None else f"event: {event}\n"
    if "\n" in data or "\r" in data:
        lines = "".join(f"data: {line}\n" for line in _LINE_END.split(data))
        return f"{name}{lines}\n".encode()
    return f"{name}data: {data}\n\n".encode()


def error_frame(error: ControlPlaneError, request_id: str = "") -> bytes:
    """Return the event ``error``, whose data is the problem body of ``error``."""
    return frame("error", json.dumps(problem(error, request_id), separators=(",", ":")))


def retry_frame() -> bytes:
    """Return what tells a browser how soon to come back."""
    return f"retry: {RETRY_MS}\n\n".encode()


def cursor_of(request: Request, after: str | None) -> str | None:
    """Return where the client wants to go on; None: at the beginning.

    ``after`` is the parameter of the query.
    """
    told = request.headers.get(HEADER, "")
    return told or after or None


def invalid_cursor(request: Request, detail: str) -> ValidationFailed:
    """Return the error for a place that is none of this stream, where the client gave it."""
    if request.headers.get(HEADER):
        fault = Fault("invalid-cursor", detail, header=HEADER)
    else:
        fault = Fault("invalid-cursor", detail, parameter="after")
    return ValidationFailed([fault])


class EventSource(Source):
    """A source whose bytes are server-sent events."""

    def heartbeat(self) -> bytes:
        """Return a comment, which clients skip."""
        return b": nothing new\n\n"

    def farewell(self, error: ControlPlaneError | None) -> bytes:
        """Return an ``error`` event, or when to come back."""
        return retry_frame() if error is None else error_frame(error)

    def rest_of_begun(self, pending: bytes | bytearray) -> int | None:
        """Return where the event ends: with an empty line, and nothing else has one."""
        end = pending.find(b"\n\n")
        return None if end < 0 else end + 2


def stream_answer(request: Request, source: EventSource) -> StreamAnswer:
    """Return the answer that sends the events of ``source`` until it ends, or the client.

    Raises ``ServiceUnavailable`` (``too-many-streams``).
    """
    require_stream_room(request)
    return StreamAnswer(source, content_type=CONTENT_TYPE, headers=HEADERS)
