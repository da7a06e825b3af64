"""What events tell besides themselves: processes, changes, losses, coverage, ends of streams.

Everything here can be made again from the log. It is read from metas that a workspace may have
forged, so members that make no sense are left out and numbers are brought into range; the events
keep what was really said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from runs.agent.record.frames import Event, Kind, Stream
from runs.record.ingest import meta as metas
from runs.record.ingest.meta import INT32_MAX

UNPLACED_PROCESS = INT32_MAX
"""The process number of events whose own number cannot be that of any process."""

MAX_OFFSET = 2**62
"""No stream is longer. Keeps sums of an offset and a length within 64 bits."""

TRACKED_STREAMS = 16_384
"""Of so many streams the ends are kept; a run that has more was made to."""

CONTRADICTED = "contradicted: "
"""How the reason of a loss begins when a chunk told bytes of its stream a second time."""

UNTRACKED = "more than "
"""How it begins when nobody looks for holes and contradictions in further streams."""

SOURCES = ("processes", "io", "files", "network", "input")


@dataclass(frozen=True, slots=True)
class Loss:
    """One span of what the record does not hold; the members of ``runs.models.RunLoss``."""

    kind: str
    detected_via: str
    from_sequence: int | None = None
    to_sequence: int | None = None
    process_number: int | None = None
    stream: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    count: int | None = None
    reason: str = ""


@dataclass
class Derived:
    """Collects what a batch of events tells.

    ``streams`` and ``coverage`` start as the head has them. Events come with the run's numbers;
    ``process_base`` places the process numbers inside metas.
    """

    process_base: int
    streams: dict[str, int]
    coverage: dict[str, Any]
    starts: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    exits: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    changes: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    highest_process: int = 0
    untracked: bool = False

    def take(self, event: Event) -> None:
        """Take notice of one event that is no I/O chunk (of those, see :meth:`reach`)."""
        reader = self._readers.get(event.kind)
        if reader is not None:
            reader(self, event, metas.read(event.meta))

    def reach(self, sequence: int, process: int, stream: int, start: int, end: int) -> None:
        """Note that an event tells of a stream from ``start`` to ``end``.

        A jump is a loss; so is a chunk that tells bytes a second time, because nobody can say
        which ones were real.
        """
        key = f"{process}/{stream}"
        known = self.streams.get(key)
        if known is None:
            if len(self.streams) >= TRACKED_STREAMS:
                self._note_untracked(sequence)
                return
            known = 0
        if start > known:
            self.losses.append(
                Loss(
                    "dropped_event",
                    "gap",
                    sequence,
                    sequence,
                    process,
                    stream,
                    known,
                    start,
                    start - known,
                    "bytes of the stream are missing",
                )
            )
        elif start < known and start < end:
            why = f"{CONTRADICTED}bytes from offset {start} were told before"
            self.losses.append(
                Loss("dropped_event", "gap", sequence, sequence, process, stream, reason=why)
            )
        if end > known or key not in self.streams:
            self.streams[key] = max(end, known)

    def _note_untracked(self, sequence: int) -> None:
        if not self.untracked:
            why = f"{UNTRACKED}{TRACKED_STREAMS} streams: holes in the others are not looked for"
            self.losses.append(Loss("dropped_event", "gap", sequence, reason=why))
        self.untracked = True

    def totals(self, event: Event, told: Mapping[str, Any]) -> None:
        """Hold the totals that end a source against what came; what is missing is a loss."""
        listed = told.get("streams")
        for each in listed if isinstance(listed, list) else ():
            if not isinstance(each, dict):
                continue
            process = self._process(each.get("process"))
            name = each.get("stream")
            stream = metas.STREAM_NUMBERS.get(name) if isinstance(name, str) else None
            total = metas.integer(each.get("bytes"), high=MAX_OFFSET)
            if process and stream and total is not None:
                self.reach(event.sequence, process, stream, total, total)

    def _process(self, told: object) -> int | None:
        """Return the run's number of a process that a meta names by its source's number."""
        number = metas.integer(told)
        if number is None or number == 0:
            return None
        placed = number + self.process_base
        return placed if placed < UNPLACED_PROCESS else None

    def _record_started(self, event: Event, told: Mapping[str, Any]) -> None:
        listed = told.get("coverage")
        if isinstance(listed, dict):
            # What the control plane says is not for a source to change.
            kept = {name: told for name, told in self.coverage.items() if name not in SOURCES}
            self.coverage = kept | {
                source: _coverage(listed[source])
                for source in SOURCES
                if isinstance(listed.get(source), dict)
            }

    def _coverage_changed(self, event: Event, told: Mapping[str, Any]) -> None:
        source = told.get("source")
        if source in SOURCES:
            self.coverage[source] = self.coverage.get(source, {}) | _coverage(told)

    def _process_started(self, event: Event, told: Mapping[str, Any]) -> None:
        if not 0 < event.process < UNPLACED_PROCESS:
            return
        self.highest_process = max(self.highest_process, event.process)
        self.starts.setdefault(
            event.process,
            (
                self._process(told.get("parent")),
                told.get("leader") is True,
                metas.integer(told.get("pid")),
                metas.texts(told.get("argv")),
                metas.text(told.get("cwd")),
                metas.text(told.get("name")),
                metas.streams(told.get("streams")),
                event.wall_us,
            ),
        )

    def _process_exited(self, event: Event, told: Mapping[str, Any]) -> None:
        if not 0 < event.process < UNPLACED_PROCESS:
            return
        self.highest_process = max(self.highest_process, event.process)
        self.exits.setdefault(
            event.process,
            (
                event.wall_us,
                metas.integer(told.get("code"), low=-INT32_MAX, high=INT32_MAX),
                metas.text(told.get("signal"), 16),
                metas.text(told.get("reason"), 16),
            ),
        )

    def _stream_closed(self, event: Event, told: Mapping[str, Any]) -> None:
        self.reach(*_place(event), event.offset, event.offset)
        # Of an input, what the program did not take was never part of the stream.
        output = event.stream not in (Stream.STDIN, Stream.PTY_INPUT)
        if told.get("reason") == "abandoned" and output:
            self.losses.append(
                Loss(
                    "dropped_event",
                    "marker",
                    event.sequence,
                    event.sequence,
                    event.process,
                    event.stream,
                    event.offset,
                    reason="abandoned: somebody held the stream open after its process had ended",
                )
            )

    def _input_hidden(self, event: Event, told: Mapping[str, Any]) -> None:
        hidden = metas.integer(told.get("bytes")) or 0
        self.reach(*_place(event), event.offset, min(event.offset + hidden, MAX_OFFSET))

    def _dropped(self, event: Event, told: Mapping[str, Any]) -> None:
        reason = metas.text(told.get("reason"), 200)
        here = (event.sequence, event.sequence)
        if event.stream == Stream.NONE:
            what = metas.text(told.get("what"), 200)
            count = metas.integer(told.get("count"))
            because = f"{what}: {reason}" if what else reason
            self.losses.append(Loss("dropped_event", "marker", *here, count=count, reason=because))
            return
        end = metas.integer(told.get("toOffset"), high=MAX_OFFSET)
        count = metas.integer(told.get("bytes"))
        if end is not None:
            self.reach(*_place(event), event.offset, end)
        place = (event.process, event.stream, event.offset, end)
        self.losses.append(Loss("dropped_event", "marker", *here, *place, count, reason))

    def _overflow(self, event: Event, told: Mapping[str, Any]) -> None:
        root = metas.text(told.get("root"), 4096)
        here = (event.sequence, event.sequence)
        self.losses.append(Loss("watch_overflow", "marker", *here, reason=root))

    def _change(self, event: Event, told: Mapping[str, Any]) -> None:
        position = metas.integer(told.get("position"), high=INT32_MAX)
        path = metas.raw(told.get("path"))
        if not position or path is None:
            return
        self.changes.setdefault(
            position,
            (
                path,
                metas.raw(told.get("oldPath")),
                metas.text(told.get("change"), 16),
                told.get("binary") is True,
                metas.integer(told.get("addedLines")),
                metas.integer(told.get("removedLines")),
                metas.integer(told.get("sizeBefore")),
                metas.integer(told.get("sizeAfter")),
                metas.text(told.get("modeBefore"), 6),
                metas.text(told.get("modeAfter"), 6),
                event.body,
                told.get("patchTruncated") is True,
            ),
        )

    def _record_sealed(self, event: Event, told: Mapping[str, Any]) -> None:
        self.totals(event, told)
        if told.get("reason") == "recorder-lost":
            why = "recorder-lost: what it had read and not written yet is gone"
            self.losses.append(Loss("early_close", "marker", event.sequence, reason=why))

    def _state(self, event: Event, told: Mapping[str, Any]) -> None:
        if isinstance(told.get("totals"), dict):
            self.totals(event, told["totals"])

    _readers: ClassVar[dict[int, Callable[[Derived, Event, Mapping[str, Any]], None]]] = {
        Kind.RECORD_STARTED: _record_started,
        Kind.PROCESS_STARTED: _process_started,
        Kind.PROCESS_EXITED: _process_exited,
        Kind.PROCESS_STREAM_CLOSED: _stream_closed,
        Kind.INPUT_HIDDEN: _input_hidden,
        Kind.TELEMETRY_DROPPED: _dropped,
        Kind.FILE_WATCH_OVERFLOW: _overflow,
        Kind.FILE_DIFF_ENTRY: _change,
        Kind.COVERAGE_CHANGED: _coverage_changed,
        Kind.RUNTIME_STATE_CHANGED: _state,
        Kind.RECORD_SEALED: _record_sealed,
    }


def _place(event: Event) -> tuple[int, int, int]:
    return event.sequence, event.process, event.stream


def _coverage(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record says of one source, with nothing in it that a reader may trip over."""
    clean: dict[str, Any] = {
        name: metas.text(told[name], 500)
        for name in ("state", "method", "reason", "detail")
        if isinstance(told.get(name), str)
    }
    interval = metas.integer(told.get("intervalMs"))
    return clean if interval is None else clean | {"intervalMs": interval}
