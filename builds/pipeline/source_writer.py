"""Writes one source of a record from the build worker: buffered, stored by a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from django.db import InterfaceError, OperationalError, connections

from controlplane.database.retries import retry_database
from controlplane.errors import JobError
from controlplane.logging import carried
from runs.agent.record.frames import Confidence, Event, Method, Stream, content_of
from runs.record import store

RECORD_ENDED = "record-ended"

FLUSH_SECONDS = 0.1
FLUSH_BYTES = 64 * 1024
BUFFER_BYTES = 1024 * 1024
LAST_SECONDS = 15.0
"""How long a build that was cancelled waits for the database, for what it still has to tell."""


class SourceWriter:
    """One source of a record, for events from its first to :meth:`close`.

    The source opens with :meth:`go_live`, before the first program starts, or else as it closes: a
    build in which no program runs has its few events stored at once. Once it is live, a thread of
    its own stores them. The thread that builds only puts events in a buffer; when the database is
    slow or away the buffer fills, and then the builder's pipe waits. Nothing is dropped here.

    ``require`` is called in the transaction that opens the source, and raises what keeps it from
    that. ``lock`` may be held around several calls, so that what they tell stays together.
    ``on_tick`` is called with it about every 100 ms. Database errors come out after ``timeout``
    seconds, or after a few when ``cancelled`` is set; a record that has ended, or that another
    source is at, is ``record-ended``.
    """

    def __init__(
        self,
        run_number: int,
        source_id: str,
        *,
        timeout: float,
        cancelled: threading.Event,
        require: Callable[[], None],
        on_tick: Callable[[], None],
    ) -> None:
        self._run_number = run_number
        self._source_id = source_id
        self._timeout = timeout
        self._cancelled = cancelled
        self._require = require
        self._is_open = False
        self._on_tick = on_tick
        self._sequence = 0
        self._buffer: list[bytes] = []
        self._size = 0
        self._closing = False
        self._failure: Exception | None = None
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None

    def go_live(self) -> None:
        """Open the source, and from now on store events as they come.

        What the events so far tell is stored when this returns: whoever follows a worker that was
        killed after it says that the end of this source is missing.
        """
        if self._thread is None:
            self._store_the_rest(self._require)
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

    def close(self, beforehand: Callable[[], None] | None = None) -> None:
        """Store what is left; raise what keeps it from the record.

        What ``beforehand`` writes is of the same transaction. What it raises keeps everything from
        being stored, and then the source can be closed again, with another one or without.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._raise_failure()
        self._store_the_rest(beforehand or (self._nothing if self._is_open else self._require))

    def _nothing(self) -> None:
        """Ask for nothing: what a source has begun, it may go on with until another follows it."""

    def _raise_failure(self) -> None:
        if isinstance(self._failure, store.StoreError):
            raise _ended() from self._failure
        if self._failure is not None:
            raise self._failure

    def _store_the_rest(self, beforehand: Callable[[], None]) -> None:
        """Store the buffer from the thread that builds; it stays as it is when that fails."""
        with self._changed:
            contents = list(self._buffer)
        try:
            self._store(contents, beforehand)
        except store.StoreError as error:
            raise _ended() from error
        with self._changed:
            del self._buffer[: len(contents)]
            self._size -= sum(map(len, contents))

    def _store(self, contents: list[bytes], beforehand: Callable[[], None]) -> None:
        """Store events in one transaction with what ``beforehand`` does, and open the source.

        What is stored already, because only the answer was lost, is not stored again.
        """

        def write() -> None:
            store.append(
                self._run_number,
                self._source_id,
                contents,
                opening=not self._is_open,
                beforehand=beforehand,
            )

        try:
            retry_database(write, timeout=self._timeout, cancelled=self._cancelled)
        except (OperationalError, InterfaceError):
            if not self._cancelled.is_set():
                raise
            retry_database(write, timeout=LAST_SECONDS)
        self._is_open = True

    # ------------------------------------------------------------ the thread

    def _work(self) -> None:
        try:
            while self._store_next():
                pass
        except Exception as exc:  # told to whoever feeds this, and to whoever closes it
            with self._changed:
                self._failure = exc
                self._changed.notify_all()
        finally:
            connections.close_all()

    def _store_next(self) -> bool:
        """Store one batch once it is due; False when the rest is for :meth:`close`."""
        with self._changed:
            if not self._closing and self._size < FLUSH_BYTES:
                self._changed.wait(FLUSH_SECONDS)
            if self._closing:
                return False
            self._on_tick()
            contents = self._buffer
            self._buffer = []
        if contents:
            self._store(contents, self._nothing)
        with self._changed:
            # Only now: what is on its way to the database takes room as well.
            self._size -= sum(map(len, contents))
            self._changed.notify_all()
        return True


def _ended() -> JobError:
    return JobError(RECORD_ENDED, "The record of the workspace's start ended before its build did.")
