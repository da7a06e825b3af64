"""Writes one source of a record from the build worker: buffered, stored by a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.db import connections

from controlplane.database.retries import retry_database
from controlplane.errors import JobError
from controlplane.logging import carried
from runs.agent.record.frames import Confidence, Event, Method, Stream, content_of
from runs.record import store

RECORD_ENDED = "record-ended"

FLUSH_SECONDS = 0.1
FLUSH_BYTES = 64 * 1024
BUFFER_BYTES = 1024 * 1024


class SourceWriter:
    """One source of a record, open for events from its first to :meth:`close`.

    It stores them from a thread of its own. The thread that builds only puts events in a buffer;
    when the database is slow or away the buffer fills, and then the builder's pipe waits. Nothing
    is dropped here. A build in which no program runs needs no such thread: its few events are
    stored when it closes.

    ``lock`` may be held around several calls, so that what they tell stays together. ``on_tick`` is
    called with it about every 100 ms. Database errors come out after ``timeout`` seconds, or at
    once when ``cancelled`` is set; a record that has ended, or that another source is at, is
    ``record-ended``.
    """

    def __init__(
        self,
        run_number: int,
        source_id: str,
        *,
        timeout: float,
        cancelled: threading.Event,
        on_tick: Callable[[], None],
    ) -> None:
        self._run_number = run_number
        self._source_id = source_id
        self._persistently = partial(retry_database, timeout=timeout, cancelled=cancelled)
        self._on_tick = on_tick
        self._sequence = 0
        self._buffer: list[bytes] = []
        self._size = 0
        self._closing = False
        self._failure: Exception | None = None
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None

    def open(self, kind: int, meta: Mapping[str, Any]) -> None:
        """Open the source and store its first event, before anything happens that it tells of."""

        self.event(kind, meta)
        contents, self._buffer, self._size = self._buffer, [], 0

        def write() -> None:
            # What is stored already, because only the answer was lost, is not stored again.
            store.append(self._run_number, self._source_id, contents, opening=True)

        try:
            self._persistently(write)
        except store.StoreError as error:
            raise _ended() from error

    def go_live(self) -> None:
        """From now on store events as they come."""
        if self._thread is None:
            name = f"record of {self._source_id}"
            self._thread = threading.Thread(target=carried(self._work), name=name)
            self._thread.start()

    def event(
        self,
        kind: int,
        meta: Mapping[str, Any] | None = None,
        *,
        process: int = 0,
        stream: int = Stream.NONE,
        offset: int = 0,
        body: bytes = b"",
        method: int = Method.INTERNAL,
        wall_us: int | None = None,
    ) -> None:
        """Tell the next event; never waits."""
        told = b""
        if meta is not None:
            told = json.dumps(meta, separators=(",", ":"), ensure_ascii=False).encode()
        with self._changed:
            self._sequence += 1
            event = Event(
                self._sequence,
                time.time_ns() // 1000 if wall_us is None else wall_us,
                time.monotonic_ns(),
                kind,
                method,
                Confidence.OBSERVED,
                process,
                stream,
                offset,
                told,
                body,
            )
            content = content_of(event)
            self._buffer.append(content)
            self._size += len(content)
            if self._size >= FLUSH_BYTES:
                self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait while the buffer is full; raise what keeps its events from the record."""
        with self._changed:
            while self._failure is None and self._size >= BUFFER_BYTES:
                self._changed.wait()
            self._raise_failure()

    def close(self) -> None:
        """Store what is left; raise what keeps it from the record."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        else:
            self._store_the_rest()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if isinstance(self._failure, store.StoreError):
            raise _ended() from self._failure
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------ the thread

    def _work(self) -> None:
        try:
            self._store_the_rest()
        finally:
            connections.close_all()

    def _store_the_rest(self) -> None:
        try:
            while self._store_next():
                pass
        except Exception as exc:  # told to whoever feeds this, and to whoever closes it
            with self._changed:
                self._failure = exc
                self._changed.notify_all()

    def _store_next(self) -> bool:
        """Store one batch once it is due; False when it was the last one."""
        with self._changed:
            if not self._closing and self._size < FLUSH_BYTES:
                self._changed.wait(FLUSH_SECONDS)
            self._on_tick()
            contents, last = self._buffer, self._closing
            self._buffer = []
        if contents:
            self._persistently(lambda: store.append(self._run_number, self._source_id, contents))
        with self._changed:
            # Only now: what is on its way to the database takes room as well.
            self._size -= sum(map(len, contents))
            self._changed.notify_all()
        return not last


def _ended() -> JobError:
    return JobError(RECORD_ENDED, "The record of the workspace's start ended before its build did.")
