"""Answers that go on: what follows is read once the client has taken what came before.

A view returns a :class:`StreamAnswer` with a :class:`Source`. Under our gunicorn worker the thread
is free again once the head is sent: a few threads of each process read the sources of all streams
(``controlplane.serving.stream_threads``), woken by PostgreSQL's notifications. Elsewhere (Django's
test client, ``runserver``) it is an ordinary streaming response, whose thread looks by itself.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, StreamingHttpResponse

from controlplane.errors import ControlPlaneError, ServiceUnavailable

ROOM_BYTES = 32 * 1024
"""How much is read for a client at a time; nothing more until it has taken all of it."""
LOOK_SECONDS = 10.0
"""How often a source is read though nothing was announced, and how often a silent one is heard."""
_LOOK_BY_ITSELF_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel of PostgreSQL's notifications; ``keys_of`` tells what a payload is about."""

    name: str
    keys_of: Callable[[str], Collection[str]]


@dataclass(frozen=True, slots=True)
class Topic:
    """What a source wants to be woken by: announcements on a channel about one thing."""

    channel: Channel
    key: str


@dataclass(frozen=True, slots=True)
class Piece:
    """What follows in a stream.

    ``more``: there is more already. ``ended``: the stream is over with these bytes. ``whole``: they
    end where something else may be said in between.
    """

    data: bytes = b""
    more: bool = False
    ended: bool = False
    whole: bool = True


class Source(ABC):
    """Where a stream comes from. It keeps its own place, and little else: there may be hundreds.

    :meth:`read` is called in one thread at a time, not always the same one, with a database
    connection of that thread and outside of transactions.
    """

    topics: frozenset[Topic] = frozenset()
    """What wakes it. May be replaced by another set while it is read."""

    @abstractmethod
    def read(self, room: int, since: float) -> Piece:
        """Return what follows, at most ``room`` bytes.

        What others read at or after ``since`` (of ``time.monotonic``) may be given again: nothing
        was announced later. Raises Django's database errors, after which it is called again, and
        ``ControlPlaneError``, which ends the stream.
        """

    @abstractmethod
    def heartbeat(self) -> bytes:
        """Return what is sent while there is nothing to say."""

    @abstractmethod
    def farewell(self, error: ControlPlaneError | None) -> bytes:
        """Return the last words of a stream that we end; without an error it may be taken up."""


class StreamAnswer(StreamingHttpResponse):
    """An answer of status 200 that goes on until its source ends, or its client."""

    def __init__(
        self, source: Source, *, content_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(_pieces(source), content_type=content_type, headers=dict(headers or {}))
        self.source = source


def require_stream_room(request: Any) -> None:
    """Raise ``ServiceUnavailable`` (``too-many-streams``) when the client has all it may have.

    ``request`` is Django's or DRF's. To be called by a view before it makes its answer.
    """
    inner: HttpRequest = getattr(request, "_request", request)
    # Our worker's way to the client knows; another server's has no such limit.
    admit = getattr(inner.META.get("gunicorn.socket"), "admit_stream", None)
    if admit is not None and not admit():
        raise ServiceUnavailable(
            "There are too many streams from this address; close some, or try again later.",
            code="too-many-streams",
        )


def _pieces(source: Source) -> Iterator[bytes]:
    """Yield a stream to a server that writes it in the thread of its request."""
    told = time.monotonic()
    while True:
        try:
            piece = source.read(ROOM_BYTES, time.monotonic())
        except ControlPlaneError as error:
            yield source.farewell(error)
            return
        if piece.data:
            told = time.monotonic()
            yield piece.data
        if piece.ended:
            return
        if not piece.more:
            if time.monotonic() - told >= LOOK_SECONDS:
                told = time.monotonic()
                yield source.heartbeat()
            time.sleep(_LOOK_BY_ITSELF_SECONDS)
