"""What a spool tells of its processes and streams, kept while its frames come and go.

Frames that are freed cannot be counted any more. So the writer stores the sums of the segments that
it has closed, and whoever repairs a spool goes on from them.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Tuple

from .frames import STREAM_NAMES, Event, Kind, decode, frames
from .segments import Reader, SpoolDamaged, holds_a_frame


class Summary:
    """Totals of a record up to sequence `through`."""

    def __init__(self, stored: Optional[Dict[str, Any]] = None) -> None:
        stored = stored or {}
        self.through: int = stored.get("through", 0)
        self.processes: int = stored.get("processes", 0)
        self.leader: int = stored.get("leader", 0)
        """The number of the latest leader."""
        self.exit: Optional[Dict[str, Any]] = stored.get("exit")
        """How that leader has ended, if it has."""
        self._streams: Dict[Tuple[int, int], List[int]] = {
            (process, stream): [size, dropped]
            for process, stream, size, dropped in stored.get("streams", [])
        }

    def note(self, event: Event) -> None:
        """Count one event; those that were counted before change nothing."""
        if event.sequence <= self.through:
            return
        self.through = event.sequence
        kind = event.kind
        if kind == Kind.IO_CHUNK:
            self.note_chunk(
                event.sequence, event.process, event.stream, event.offset + len(event.body)
            )
        elif event.stream:
            meta = _members(event)
            total = self._streams.setdefault((event.process, event.stream), [0, 0])
            end = event.offset
            if kind == Kind.INPUT_HIDDEN:
                end += meta.get("bytes", 0)
            elif kind == Kind.TELEMETRY_DROPPED:
                end = meta.get("toOffset", end)
                total[1] += meta.get("bytes", 0)
            total[0] = max(total[0], end)
        elif kind == Kind.PROCESS_STARTED:
            self.processes = max(self.processes, event.process)
            if _members(event).get("leader"):
                self.leader, self.exit = event.process, None
        elif kind == Kind.PROCESS_EXITED and event.process == self.leader:
            meta = _members(event)
            self.exit = {name: meta.get(name) for name in ("code", "signal", "reason")}

    def note_chunk(self, sequence: int, process: int, stream: int, end: int) -> None:
        """Count an I/O chunk that ends at this offset."""
        self.through = sequence
        total = self._streams.setdefault((process, stream), [0, 0])
        if end > total[0]:
            total[0] = end

    def skip(self, through: int, count: int) -> None:
        """Go on behind events that were committed elsewhere and cannot be read here any more."""
        self.through = through
        # Each may have started a process. No number is given out twice.
        self.processes += count

    def totals(self) -> Dict[str, Any]:
        """The members `processes` and `streams` of `recordSealed`."""
        return {
            "processes": self.processes,
            "streams": [
                {
                    "process": process,
                    "stream": STREAM_NAMES.get(stream, str(stream)),
                    "bytes": size,
                    "dropped": dropped,
                }
                for (process, stream), (size, dropped) in sorted(self._streams.items())
            ],
        }

    def stored(self) -> bytes:
        """What the constructor takes, as JSON."""
        streams = [[*key, *total] for key, total in self._streams.items()]
        return json.dumps(
            {
                "through": self.through,
                "processes": self.processes,
                "leader": self.leader,
                "exit": self.exit,
                "streams": streams,
            }
        ).encode("ascii")


def _members(event: Event) -> Dict[str, Any]:
    value = json.loads(event.meta) if event.meta else {}
    return value if isinstance(value, dict) else {}


def read_to_end(reader: Reader, last_segment: str, summary: Summary) -> Tuple[int, bool]:
    """Count what a spool without a writer holds; the reader stays at the end of what is whole.

    Returns the last sequence and whether the spool is sealed. Raises SpoolDamaged when what is not
    whole is anything but a torn tail.
    """
    sealed = False
    while True:
        try:
            batch = reader.read()
        except SpoolDamaged:
            if reader.segment != last_segment:
                raise
            batch = None
        if batch is None:
            break
        sealed = batch.sealed
        for content in frames(bytes(batch.data)):
            summary.note(decode(content))
    if reader.segment != last_segment:
        raise SpoolDamaged(f"cut off, and more follows: {reader.place}")
    if holds_a_frame(reader.remainder(), reader.next_sequence - 1):
        raise SpoolDamaged(f"no sound frame, and more follows: {reader.place}")
    return reader.next_sequence - 1, sealed
