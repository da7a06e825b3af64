"""The part of a boot run's record that the build worker writes: what was built, and its output.

Its source is ``build:<job>:<attempt count>``, so a worker that takes a job over begins a source of
its own, and the record says of a killed one that its end is missing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import structlog
from django.db import connections

from builds.pipeline.job_slots import BuildSlotNeeded
from controlplane.database.retries import DATABASE_RETRY_SECONDS, retry_database
from controlplane.errors import JobError
from controlplane.logging import carried
from controlplane.subprocesses import ProcessResult
from runs.agent.masking.masker import Masker
from runs.agent.record.frames import (
    STREAM_NAMES,
    Confidence,
    Event,
    Kind,
    Method,
    Stream,
    content_of,
)
from runs.boot_runs import boot_run
from runs.models import Run
from runs.record import store
from workspaces.models import BuildJob

log = structlog.get_logger(__name__)

RECORD_ENDED = "record-ended"
OUTPUT_LIMIT = 16 * 1024 * 1024
"""Bytes of each stream of a program that are recorded; of the rest the record says how much."""
CHUNK_BYTES = 32 * 1024
SILENCE_SECONDS = 0.02
"""What may be the beginning of a secret is given out when nothing has followed for so long."""

FLUSH_SECONDS = 0.1
FLUSH_BYTES = 64 * 1024
BUFFER_BYTES = 1024 * 1024

_STREAMS = {"stdout": Stream.STDOUT, "stderr": Stream.STDERR}
_COVERAGE = {
    "processes": {
        "state": "limited",
        "method": "pipe",
        "reason": "of a build, the programs that the build worker starts",
    },
    "io": {"state": "on", "method": "pipe"},
    "files": {"state": "off", "method": "none", "reason": "not observed during a build"},
    "network": {"state": "off", "method": "none", "reason": "not observed during a build"},
    "input": {"state": "off", "method": "none", "reason": "a build has no input"},
}


@contextmanager
def recording(
    job: BuildJob, secrets: Iterable[bytes], *, cancelled: threading.Event
) -> Iterator[BuildRecord]:
    """Open the record of a build for the block, and tell its end in order whatever happens.

    Raises when the end cannot be stored although the block went well.
    """
    run = retry_database(
        lambda: boot_run(job.attempt), timeout=DATABASE_RETRY_SECONDS, cancelled=cancelled
    )
    record = BuildRecord(run, job, list(secrets), cancelled=cancelled)
    record.open()
    try:
        yield record
    except BuildSlotNeeded:
        record.state("An image has to be built: waiting for a build slot.")
        record.close("stopped")
        raise
    except BaseException:
        try:
            record.close("failed")
        except Exception as exc:
            log.warning("build_record_not_ended", reason=type(exc).__name__)
        raise
    record.close("stopped")


class BuildRecord:
    """The record of one build. Its methods may be called from one thread at a time."""

    def __init__(
        self, run: Run, job: BuildJob, secrets: Sequence[bytes], *, cancelled: threading.Event
    ) -> None:
        self._run = run
        self._secrets = list(secrets)
        self._masker = Masker(self._secrets)
        self._source_id = f"build:{job.pk}:{job.attempt_count}"
        self._programs: list[ProgramRecord] = []
        self._streams: list[dict[str, Any]] = []
        self._writer = SourceWriter(
            run.number,
            self._source_id,
            timeout=DATABASE_RETRY_SECONDS,
            cancelled=cancelled,
            on_tick=self._tick,
        )

    def hide(self, secret: str) -> None:
        """Mask one more secret in everything that is told from now on."""
        self._secrets.append(secret.encode())
        self._masker = Masker(self._secrets)

    def open(self) -> None:
        """Begin the record; what follows may be recorded."""
        self._writer.open(
            Kind.RECORD_STARTED,
            {
                "version": 1,
                "runId": str(self._run.pk),
                "spoolId": self._source_id,
                "mode": "build",
                "workspaceId": str(self._run.workspace_id),
                "policy": "block",
                "limits": {"streamBytes": OUTPUT_LIMIT},
                "redaction": {"values": self._masker.values, "shapes": True},
                "input": "off",
                "isolated": True,
                "coverage": _COVERAGE,
            },
        )

    def state(self, message: str) -> None:
        """Tell where the build is."""
        self._writer.event(
            Kind.RUNTIME_STATE_CHANGED, {"state": "starting", "message": self._text(message)}
        )
        self._writer.wait_for_room()

    def started(
        self, name: str, argv: Sequence[str], streams: Sequence[str] = ("stdout", "stderr")
    ) -> ProgramRecord:
        """Tell of a program that is started now."""
        self._writer.go_live()
        number = len(self._programs) + 1
        self._writer.event(
            Kind.PROCESS_STARTED,
            {
                "leader": True,
                "name": name,
                "argv": [self._text(word) for word in argv],
                "streams": list(streams),
            },
            process=number,
            method=Method.PIPE,
        )
        program = ProgramRecord(self._writer, self._masker, number, streams)
        self._programs.append(program)
        return program

    @contextmanager
    def step(self, name: str, argv: Sequence[str]) -> Iterator[None]:
        """Tell of a program whose output is not recorded; the block is its life."""
        program = self.started(name, argv, streams=())
        try:
            yield
        except BaseException:
            program.exited(None, None, "lost")
            raise
        program.exited(0, None, "exited")

    def close(self, state: str) -> None:
        """Tell that everything was told, with the totals; raise when that cannot be stored."""
        with self._writer.lock:
            for program in self._programs:
                program.ended(None)
            streams = [total for program in self._programs for total in program.totals()]
            totals = {"processes": len(self._programs), "streams": streams}
            self._writer.event(Kind.RUNTIME_STATE_CHANGED, {"state": state, "totals": totals})
        self._writer.close()

    def _tick(self) -> None:
        for program in self._programs:
            program.tick()

    def _text(self, text: str) -> str:
        masked = self._masker.mask(text.encode("utf-8", "surrogateescape"))
        return masked.decode("utf-8", "replace")


class ProgramRecord:
    """One program of a build: its output as it comes, and its end."""

    def __init__(
        self, writer: SourceWriter, masker: Masker, number: int, streams: Sequence[str]
    ) -> None:
        self._writer = writer
        self._number = number
        self._began = time.monotonic()
        self._ended = False
        self._outputs = {name: _Output(writer, masker, number, _STREAMS[name]) for name in streams}

    def feed(self, stream: str, chunk: bytes) -> None:
        """Take the next bytes of a stream; waits while the record takes none."""
        with self._writer.lock:
            for name, output in self._outputs.items():
                if name != stream:
                    output.give_out()  # so that the order of the streams stays as it was
            self._outputs[stream].feed(chunk)
        self._writer.wait_for_room()

    def ended(self, result: ProcessResult | None) -> None:
        """Tell how the program ended; None: nobody knows. Only the first call counts."""
        if result is None:
            self.exited(None, None, "lost")
        elif result.timed_out or result.cancelled:
            reason = "timeout" if result.timed_out else "cancelled"
            self.exited(result.exit_code, result.signal, reason)
        else:
            reason = "signaled" if result.signal else "exited"
            self.exited(result.exit_code, result.signal, reason)

    def exited(self, code: int | None, signal: str | None, reason: str) -> None:
        """Tell how the program ended, in the words of ``processExited``."""
        with self._writer.lock:
            if self._ended:
                return
            self._ended = True
            for output in self._outputs.values():
                output.close()
            microseconds = round((time.monotonic() - self._began) * 1e6)
            told = {"code": code, "signal": signal, "reason": reason, "durationUs": microseconds}
            self._writer.event(Kind.PROCESS_EXITED, told, process=self._number, method=Method.PIPE)

    def tick(self) -> None:
        """Give out what waited long enough."""
        if not self._ended:
            for output in self._outputs.values():
                output.tick()

    def totals(self) -> list[dict[str, Any]]:
        """Return the program's members of ``totals``."""
        return [output.total() for output in self._outputs.values()]


class _Output:
    """One stream: masked, gathered to chunks, recorded up to the limit. Called with the lock."""

    def __init__(self, writer: SourceWriter, masker: Masker, process: int, stream: int) -> None:
        self._writer = writer
        self._masking = masker.stream()
        self._process = process
        self._stream = stream
        self._chunk = bytearray()
        self._masked: list[list[int]] = []
        self._began_us = 0
        self._fed_at = 0.0
        self._recorded = 0
        self._bytes = 0

    def feed(self, data: bytes) -> None:
        self._fed_at = time.monotonic()
        self._take(*self._masking.feed(data))

    def tick(self) -> None:
        if self._masking.held and time.monotonic() - self._fed_at >= SILENCE_SECONDS:
            self._take(*self._masking.flush())
        self.give_out()

    def _take(self, data: bytes, masked: Sequence[tuple[int, int]]) -> None:
        self._bytes += len(data)
        room = OUTPUT_LIMIT - self._recorded - len(self._chunk)
        data = data[: max(0, room)]
        if not data:
            return
        if not self._chunk:
            self._began_us = time.time_ns() // 1000
        self._chunk += data
        self._masked += [
            [start, min(end, OUTPUT_LIMIT)] for start, end in masked if start < OUTPUT_LIMIT
        ]
        if len(self._chunk) >= CHUNK_BYTES:
            self.give_out()

    def give_out(self) -> None:
        if not self._chunk:
            return
        self._writer.event(
            Kind.IO_CHUNK,
            {"masked": self._masked} if self._masked else None,
            process=self._process,
            stream=self._stream,
            offset=self._recorded,
            body=bytes(self._chunk),
            method=Method.PIPE,
            wall_us=self._began_us,
        )
        self._recorded += len(self._chunk)
        self._chunk.clear()
        self._masked = []

    def close(self) -> None:
        self._take(*self._masking.flush())
        self.give_out()
        if self._bytes > self._recorded:
            dropped = self._bytes - self._recorded
            self._tell(
                Kind.TELEMETRY_DROPPED,
                self._recorded,
                {"toOffset": self._bytes, "bytes": dropped, "reason": "output-limit"},
            )
        self._tell(Kind.PROCESS_STREAM_CLOSED, self._bytes, {"reason": "eof"})

    def _tell(self, kind: int, offset: int, meta: dict[str, Any]) -> None:
        self._writer.event(kind, meta, process=self._process, stream=self._stream, offset=offset)

    def total(self) -> dict[str, Any]:
        return {
            "process": self._process,
            "stream": STREAM_NAMES[self._stream],
            "bytes": self._bytes,
            "dropped": self._bytes - self._recorded,
        }


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

        def write() -> None:
            self._sequence = store.open_source(self._run_number, self._source_id)
            if self._sequence == 0:  # otherwise it is stored, and only the answer was lost
                self.event(kind, meta)
                contents, self._buffer, self._size = self._buffer, [], 0
                store.append(self._run_number, self._source_id, contents)

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
