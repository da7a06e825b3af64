"""Runs and the frames of their records, as a sound agent would write them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from runs.agent.record.frames import Confidence, Event, Kind, Method, Stream, content_of
from runs.models import Run
from runs.record import store
from runs.record.new_record import insert_with_head
from workspaces.models import Workspace

OWNER = "usr_test"
START_US = 1_750_000_000_000_000
COVERAGE = {
    "processes": {"state": "on", "method": "poll", "intervalMs": 100},
    "io": {"state": "on", "method": "pipe"},
    "files": {"state": "on", "method": "snapshot"},
    "network": {"state": "off", "method": "none", "reason": "not asked for"},
    "input": {"state": "off", "method": "none"},
}


def make_run(
    *,
    mode: str = Run.Mode.ONE_SHOT,
    status: str = Run.Status.RUNNING,
    workspace: Workspace | None = None,
    owner_user_id: str = OWNER,
    **values: Any,
) -> Run:
    """Return a run with the head of its record, in a workspace of its own unless one is given."""
    workspace = workspace or Workspace.objects.create(owner_user_id=owner_user_id, name="w")
    run = Run(
        workspace=workspace,
        owner_user_id=owner_user_id,
        harness_id="shell",
        mode=mode,
        status=status,
        recorded=True,
        command={"executable": "/bin/true", "args": []},
        **values,
    )
    insert_with_head(run)
    return run


class Source:
    """Builds the contents of one source's frames; numbers and clocks go up by themselves.

    ``contents`` holds everything that was told, ``waiting`` what :meth:`append` has not stored yet.
    """

    def __init__(self, run: Run, source_id: str | None = None, *, last_sequence: int = 0) -> None:
        self.run = run
        self.source_id = source_id or str(uuid.uuid4())
        self.sequence = last_sequence
        self.processes = 0
        self.contents: list[bytes] = []
        self.waiting: list[bytes] = []
        self._offsets: dict[tuple[int, int], int] = {}

    def event(
        self,
        kind: int,
        meta: Any = None,
        *,
        process: int = 0,
        stream: int = Stream.NONE,
        offset: int = 0,
        body: bytes = b"",
        method: int = Method.INTERNAL,
        confidence: int = Confidence.OBSERVED,
        sequence: int | None = None,
        wall_us: int | None = None,
        monotonic_ns: int | None = None,
    ) -> bytes:
        """Tell one event; ``meta`` as it is when it is bytes, as JSON otherwise."""
        self.sequence = sequence if sequence is not None else self.sequence + 1
        told = meta if isinstance(meta, bytes) else b"" if meta is None else _json(meta)
        event = Event(
            self.sequence,
            START_US + self.sequence * 1000 if wall_us is None else wall_us,
            self.sequence * 1_000_000 if monotonic_ns is None else monotonic_ns,
            kind,
            method,
            confidence,
            process,
            stream,
            offset,
            told,
            body,
        )
        content = content_of(event)
        self.contents.append(content)
        self.waiting.append(content)
        return content

    def started(self, **values: Any) -> bytes:
        """Tell that the record begins."""
        told = {
            "version": 1,
            "runId": str(self.run.pk),
            "spoolId": self.source_id,
            "mode": self.run.mode,
            "policy": "block",
            "limits": {"spoolBytes": 1 << 28, "segmentBytes": 1 << 23},
            "redaction": {"values": 0, "shapes": True},
            "input": "off",
            "isolated": False,
            "coverage": COVERAGE,
        }
        return self.event(Kind.RECORD_STARTED, told | values)

    def process(
        self,
        argv: Sequence[str] = ("/bin/true",),
        *,
        leader: bool = True,
        streams: Sequence[str] = ("stdout", "stderr"),
        **values: Any,
    ) -> int:
        """Tell that a process started; return its number."""
        self.processes += 1
        told = {
            "leader": leader,
            "pid": 100 + self.processes,
            "argv": list(argv),
            "cwd": "/workspace",
            "streams": list(streams),
        }
        self.event(Kind.PROCESS_STARTED, told | values, process=self.processes, method=Method.PIPE)
        return self.processes

    def output(
        self, process: int, body: bytes, *, stream: int = Stream.STDOUT, offset: int | None = None
    ) -> bytes:
        """Tell of bytes behind the last ones of the stream, or at ``offset``."""
        place = (process, stream)
        at = self._offsets.get(place, 0) if offset is None else offset
        self._offsets[place] = at + len(body)
        method = Method.PTY if stream >= Stream.PTY_INPUT else Method.PIPE
        return self.event(
            Kind.IO_CHUNK, process=process, stream=stream, offset=at, body=body, method=method
        )

    def closed(self, process: int, stream: int = Stream.STDOUT, *, reason: str = "eof") -> bytes:
        """Tell that a stream ended."""
        at = self._offsets.get((process, stream), 0)
        told = {"reason": reason}
        return self.event(
            Kind.PROCESS_STREAM_CLOSED, told, process=process, stream=stream, offset=at
        )

    def exited(
        self,
        process: int,
        *,
        code: int | None = 0,
        signal: str | None = None,
        reason: str = "exited",
    ) -> bytes:
        """Tell that a process ended."""
        told = {"code": code, "signal": signal, "reason": reason, "durationUs": 1000}
        return self.event(Kind.PROCESS_EXITED, told, process=process, method=Method.PIPE)

    def sealed(
        self,
        *,
        code: int | None = 0,
        signal: str | None = None,
        reason: str = "exited",
        exit: Any = ...,
        because: str = "ended",
        **values: Any,
    ) -> bytes:
        """Tell the end of the record."""
        ended = {"code": code, "signal": signal, "reason": reason} if exit is ... else exit
        told = {"by": "agent", "reason": because, "exit": ended, "events": self.sequence + 1}
        return self.event(Kind.RECORD_SEALED, told | {"processes": self.processes} | values)

    def append(self) -> store.Appended:
        """Store what was told since the last time."""
        waiting, self.waiting = self.waiting, []
        return store.append(self.run.number, self.source_id, waiting)

    def open(self) -> int:
        """Open the source in the run's record."""
        return store.open_source(self.run.number, self.source_id)


def record(run: Run, output: Sequence[bytes] = (b"hello\n",), *, code: int = 0) -> Source:
    """Store a whole record: one process, its output, its end."""
    source = Source(run)
    source.open()
    source.started()
    process = source.process()
    for body in output:
        source.output(process, body)
    source.closed(process)
    source.exited(process, code=code)
    source.sealed(code=code)
    source.append()
    return source


def _json(told: Any) -> bytes:
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()
