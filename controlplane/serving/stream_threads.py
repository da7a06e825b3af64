"""Reading what the streams of a process send next: a few threads for all of them.

A stream is read when something was announced that concerns it, or now and then, and only while its
client has taken all that was read before. One more thread listens to PostgreSQL. None of them ever
waits for a client.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import structlog
from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.database.retries import database_trouble
from controlplane.errors import ControlPlaneError
from controlplane.http.stream_answers import (
    AT_ONCE,
    LOOK_SECONDS,
    ROOM_BYTES,
    Channel,
    Duplex,
    Piece,
    Source,
    Topic,
)
from controlplane.serving.connections import Outgoing
from controlplane.work.notifications import Heard, listen_to
from controlplane.work.stopping import StopEvent

log = structlog.get_logger(__name__)

THREADS = 2
_RETRY_SECONDS = 1.0


class Feed:
    """One stream on its way from its source to its client.

    Its state is changed under the puller's lock alone. Whoever sets ``reading`` has the source, and
    is the only one to take, read and send until the piece is sent; everybody else leaves word by
    ``dirty`` and ``heard``, and it is queued again then.
    """

    def __init__(self, source: Source, way: Outgoing, ended: Callable[[], None]) -> None:
        self.source = source
        self.way = way
        self.ended = ended
        """Called once, in any thread, when all is said; the last bytes may not be sent yet."""
        self.topics: frozenset[Topic] = frozenset()
        self.since = time.monotonic()
        """When it was last told that there may be news."""
        self.spoke_at = self.since
        """When its client was last sent something."""
        self.not_before = 0.0
        """Until when it is not read, since the database was away; 0.0: it may be."""
        self.dirty = True
        """Whether there may be news; until a thread goes to read them."""
        self.heard = False
        """Whether its client has sent something, or left; until a thread goes to take that."""
        self.paused = False
        """Whether its client is not read from, because nothing more can be kept."""
        self.again_at = float("inf")
        """When to go on with what its client has sent."""
        self.queued = False
        """Whether it stands in the queue of the threads; until one of them comes to it."""
        self.reading = False
        """Whether somebody has its source: a thread, or the loop for a heartbeat; until the piece
        is sent. For ever once a thread has taken the last words of a client that is gone."""
        self.full = False
        """Whether its client has to take what was read before; until nothing of that is left."""
        self.whole = True
        """Whether something may be said behind what was sent last; each piece says it anew."""
        self.last = False
        """Whether it ends before its source does; for ever."""
        self.over = False
        """Whether its source has ended, or its client is gone; for ever."""


class Puller:
    """Reads the sources of all streams of a process. Threads are started with the first stream."""

    def __init__(self) -> None:
        self.feeds: dict[Feed, None] = {}
        self._by_topic: dict[Topic, dict[Feed, None]] = {}
        self._channels: dict[str, Channel] = {}
        self._ready: deque[Feed] = deque()
        self._work = threading.Condition()
        self._stopped = StopEvent()
        self._relisten = StopEvent()
        self._threads: list[threading.Thread] = []

    def add(self, feed: Feed) -> None:
        """Begin to read a stream."""
        with self._work:
            self.feeds[feed] = None
            self._subscribe(feed)
            self._schedule(feed)
            if not self._threads:
                self._start()

    def remove(self, feed: Feed) -> None:
        """Read a stream no more. What is being read of it is thrown away."""
        with self._work:
            feed.over = True
            self.feeds.pop(feed, None)
            self._unsubscribe(feed)
            if isinstance(feed.source, Duplex):
                # What its client has sent before it left.
                feed.heard = True
                self._schedule(feed)

    def reads(self, feed: Feed) -> bool:
        """Tell whether a client is to be read from; the loop is woken when that changes."""
        with self._work:
            feed.paused = isinstance(feed.source, Duplex) and not feed.source.has_room
            return not feed.paused

    def heard(self, feed: Feed) -> None:
        """Have something taken that a client has sent."""
        with self._work:
            feed.heard = True
            self._schedule(feed)

    def end(self, feed: Feed) -> bool:
        """Read a stream no more; False while it is being read, or only the rest of it is to come.

        To be called again then: what is read is sent before anything else is said.
        """
        with self._work:
            feed.last = True
            if feed.reading or feed.source.is_settled:
                return False
            self.remove(feed)
        return True

    def drained(self, feed: Feed) -> None:
        """Go on with a stream whose client has taken everything."""
        with self._work:
            # The loop may have seen that before something more was read.
            feed.full = bool(feed.way.pending)
            self._schedule(feed)

    def look(self, now: float) -> None:
        """Do what is due by the clock: looks nobody asked for, and heartbeats."""
        with self._work:
            silent = []
            for feed in self.feeds:
                if now - feed.since >= LOOK_SECONDS:
                    self._mark(feed, now)
                waits = feed.dirty or feed.heard
                if waits and feed.not_before and now >= feed.not_before:
                    feed.not_before = 0.0
                    self._schedule(feed)
                if now >= feed.again_at:
                    feed.heard = True
                    self._schedule(feed)
                free = feed.whole and not (feed.full or feed.reading or feed.over)
                if free and now - feed.spoke_at >= LOOK_SECONDS:
                    feed.spoke_at = now
                    # Nobody reads it meanwhile, so that nothing comes in between. It may be queued:
                    # threads that wait for the database hold up no heartbeat.
                    feed.reading = True
                    silent.append(feed)
        for feed in silent:
            self._deliver(feed, Piece(feed.source.heartbeat()))

    def stop(self) -> None:
        """End the threads; what they are reading is finished."""
        with self._work:
            self._stopped.set()
            self._relisten.set()
            self._work.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the threads that read, so long at the most."""
        until = time.monotonic() + seconds
        for thread in self._threads[1:]:
            thread.join(max(0.0, until - time.monotonic()))

    # ------------------------------------------------------------------ topics

    def _subscribe(self, feed: Feed) -> None:
        known = len(self._channels)
        feed.topics = feed.source.topics
        for topic in feed.topics:
            self._by_topic.setdefault(topic, {})[feed] = None
            self._channels[topic.channel.name] = topic.channel
        if len(self._channels) != known:
            self._relisten.set()

    def _unsubscribe(self, feed: Feed) -> None:
        for topic in feed.topics:
            others = self._by_topic.get(topic, {})
            others.pop(feed, None)
            if not others:
                self._by_topic.pop(topic, None)

    # ------------------------------------------------------------------ scheduling

    def _mark(self, feed: Feed, now: float) -> None:
        feed.since = now
        feed.dirty = True
        self._schedule(feed)

    def _schedule(self, feed: Feed) -> None:
        over = feed.over or (feed.last and not feed.source.is_settled)
        wanted = feed.heard or (feed.dirty and not (feed.full or over))
        busy = feed.queued or feed.reading or (feed.not_before and not feed.over)
        if wanted and not busy:
            feed.queued = True
            self._ready.append(feed)
            self._work.notify()

    def _start(self) -> None:
        targets = [self._listen, *[self._pull] * THREADS]
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------ listening

    def _listen(self) -> None:
        while not self._stopped.is_set():
            with self._work:
                self._relisten = StopEvent()
                channels = dict(self._channels)
                if self._stopped.is_set():
                    return
            try:
                listen_to(list(channels), partial(self._hear, channels), self._relisten)
            except (OperationalError, InterfaceError) as error:
                log.warning("database_away", reason=database_trouble(error), retry_in_s=1)
                self._stopped.wait(_RETRY_SECONDS)
            except Exception:  # streams would be late for as long as the process lives
                log.exception("listening_failed")
                self._stopped.wait(_RETRY_SECONDS)

    def _hear(self, channels: dict[str, Channel], heard: Heard | None) -> None:
        now = time.monotonic()
        with self._work:
            concerned: Iterable[Feed] = list(self.feeds)
            if heard is not None:
                topics = {
                    Topic(channels[name], key)
                    for name, payload in heard
                    for key in channels[name].keys_of(payload)
                }
                concerned = [feed for topic in topics for feed in self._by_topic.get(topic, ())]
            for feed in concerned:
                self._mark(feed, now)

    # ------------------------------------------------------------------ reading

    def _pull(self) -> None:
        while (feed := self._next()) is not None:
            if feed.over:
                self._take_last(feed)
                continue
            piece = self._read(feed)
            if piece is not None:
                self._deliver(feed, piece)
        close_old_connections()

    def _next(self) -> Feed | None:
        """Return the stream to go on with; None: it is over with all of them."""
        with self._work:
            while True:
                self._work.wait_for(lambda: self._ready or self._stopped.is_set())
                if not self._ready:
                    return None
                feed = self._ready.popleft()
                feed.queued = False
                if feed.reading:
                    continue  # a heartbeat is sent, and whoever sends it has it queued again
                if feed.over or not self._stopped.is_set():
                    # What the client is to be answered waits until it has taken the rest.
                    feed.dirty = feed.full and (feed.dirty or feed.heard)
                    feed.heard, feed.reading = False, True
                    return feed

    def _take(self, feed: Feed) -> None:
        """Act on what the client has sent, and have more of it read."""
        source = feed.source
        if not isinstance(source, Duplex):
            return
        wait = source.take()
        with self._work:
            feed.again_at = time.monotonic() + wait if wait > AT_ONCE else float("inf")
            feed.heard = feed.heard or 0 < wait <= AT_ONCE
            reads_again = feed.paused and source.has_room
        if reads_again:
            feed.way.wake()

    def _take_last(self, feed: Feed) -> None:
        """Act on what a client has sent that is gone."""
        try:
            self._take(feed)
        except (OperationalError, InterfaceError) as error:
            log.warning("last_words_not_taken", reason=database_trouble(error))
            close_old_connections()
        except Exception:
            log.exception("stream_failed")

    def _read(self, feed: Feed) -> Piece | None:
        """Return what follows; None when the database is away, and the stream has to wait."""
        full = feed.full
        try:
            self._take(feed)
            return Piece() if full else self._read_next(feed)
        except (OperationalError, InterfaceError) as error:
            log.warning("stream_waits_for_database", reason=database_trouble(error))
            close_old_connections()
            with self._work:
                feed.reading, feed.dirty = False, True
                feed.heard = isinstance(feed.source, Duplex)
                feed.not_before = time.monotonic() + _RETRY_SECONDS
                self._schedule(feed)
            return None
        except ControlPlaneError as error:
            return self._farewell(feed, error)
        except Exception:
            log.exception("stream_failed")
            told = ControlPlaneError("Something went wrong on our side; see the log.")
            return self._farewell(feed, told)

    def _read_next(self, feed: Feed) -> Piece:
        """Return what follows, or a heartbeat when it is time for one and there is nothing."""
        piece = feed.source.read(ROOM_BYTES, feed.since)
        silent = feed.whole and not (piece.data or piece.ended)
        if silent and time.monotonic() - feed.spoke_at >= LOOK_SECONDS:
            # One that is always being read is never free when the clock is looked at.
            return replace(piece, data=feed.source.heartbeat(), whole=True)
        return piece

    def _farewell(self, feed: Feed, error: ControlPlaneError) -> Piece:
        """Return the end of a stream that failed; it says nothing in the middle of something."""
        return Piece(feed.source.farewell(error) if feed.whole else b"", ended=True)

    def _deliver(self, feed: Feed, piece: Piece) -> None:
        """Send what was read, and settle how the stream goes on."""
        if piece.data:
            with self._work:
                feed.full, feed.whole = True, piece.whole
            with suppress(BrokenPipeError):  # the loop closes what is broken
                feed.way.offer(piece.data)
        with self._work:
            feed.reading = False
            if piece.data:
                feed.full = bool(feed.way.pending)
                feed.spoke_at = time.monotonic()
            if piece.more:
                feed.dirty = True
            if feed.source.topics is not feed.topics and not feed.over:
                self._unsubscribe(feed)
                self._subscribe(feed)
                # It was read before it was woken by these.
                feed.since, feed.dirty = time.monotonic(), True
            if piece.ended and not feed.over:
                feed.over = True
            else:
                self._schedule(feed)
        if piece.ended:
            feed.ended()
