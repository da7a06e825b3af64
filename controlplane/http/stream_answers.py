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
from controlplane.security.addresses import client_address, is_trusted_proxy, network_of

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
    held = 0
    """How many bytes of memory it keeps for its client."""
    is_settled = False
    """Whether nothing can change any more of what is still to be sent: then it is sent also when we
    end."""

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

    def rest_of_begun(self, pending: bytes | bytearray) -> int | None:
        """Return how many of the bytes that were not sent yet end what was begun to be sent.

        None when nothing can be said behind them.
        """
        return None


AT_ONCE = 0.001
"""What :meth:`Duplex.take` returns when only its time is over."""


class Duplex(Source):
    """A source whose client sends something, too: an upgraded connection."""

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Keep what the client has sent. Called by the worker's loop; never waits."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether more is to be read of the client."""

    @abstractmethod
    def take(self) -> float:
        """Act on what was received; return after how many seconds to go on with what is left.

        0.0: nothing is left; ``AT_ONCE``: after others have had their turn. Called as :meth:`read`
        is, before it, and raises what it raises. Also called once when the client is gone.
        """


class StreamAnswer(StreamingHttpResponse):
    """An answer that goes on until its source ends, or its client."""

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
    owner = getattr(inner, "verified_owner", None)
    if admit is not None and not admit(_whose(inner, owner)):
        of_whom = "from this address" if owner is None else "of this owner"
        raise ServiceUnavailable(
            f"There are too many streams {of_whom}; close some, or try again later.",
            code="too-many-streams",
        )


def _whose(request: HttpRequest, owner: str | None) -> str:
    """Return whose share of the streams this is; nothing for a proxy that does not tell."""
    if owner is not None:
        return f"owner {owner}"
    address = client_address(
        request.META.get("REMOTE_ADDR", ""), request.META.get("HTTP_X_FORWARDED_FOR", "")
    )
    return "" if is_trusted_proxy(address) else network_of(address)


def abandoned_by_client(request: Any) -> Callable[[], bool]:
    """Return what tells whether the client of a request has left before its answer.

    ``request`` is Django's or DRF's. Servers other than our worker never know.
    """
    inner: HttpRequest = getattr(request, "_request", request)
    return getattr(inner.META.get("gunicorn.socket"), "client_left", None) or (lambda: False)


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
