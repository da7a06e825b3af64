"""One run's record while it is written: what is known becomes events of the spool.

Bytes of a stream are masked, gathered into chunks of at most 32 KiB or, behind others, 20 ms, and
numbered by their raw offset. Nothing is lost in silence: bytes that find no room either make the
program wait (policy `block`) or are named as an exact range by a `telemetryDropped` event (policy
`drop`).
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ..masking.masker import Masker
from .event_meta import encode_meta, text_of
from .frames import STREAM_NAMES, Confidence, Kind, Method
from .recorded_stream import RecordedStream
from .spool import SpoolWriter

__all__ = ["RecordedStream", "Recording", "encode_meta", "text_of"]

_MAX_ARGV_BYTES = 65536
_LOOK_FOR_ROOM_SECONDS = 0.02
# A program cannot be made to wait for ever for an operator to make room on a disk.
_DISK_FULL_WAIT_SECONDS = 10.0
_KIND_NAMES_OF_DROPPED = {
    Kind.FILE_CHANGE: "fileChange",
    Kind.FILE_DIFF_ENTRY: "fileDiffEntry",
    Kind.NETWORK_SOURCE_OBSERVED: "networkSourceObserved",
}


class Recording:
    """The one writer of a run's events. Every call is short; nothing here waits.

    `numbered`: process numbers that earlier lives of the same source have used up.
    """

    def __init__(
        self, writer: SpoolWriter, *, policy: str, masker: Masker, numbered: int = 0
    ) -> None:
        self.writer = writer
        self.policy = policy
        self.masker = masker
        self._processes = numbered
        self._streams: List[RecordedStream] = []
        self._open: List[RecordedStream] = []
        self._stuck_since: Optional[float] = None
        self._gave_up = False
        self._dropped_events: Dict[Tuple[int, str], int] = {}

    @property
    def spool_id(self) -> Optional[str]:
        """Which spool it is; None when nothing is recorded."""
        return self.writer.spool_id

    @property
    def events(self) -> int:
        """How many have been recorded."""
        return self.writer.last_sequence

    def flush(self) -> None:
        """Everything until now can be read when this returns, and is durable soon after."""
        self.writer.flush()

    def sync(self) -> None:
        """Everything until now is durable when this returns."""
        self.writer.sync()

    def event(
        self,
        kind: int,
        meta: Dict[str, Any],
        *,
        process: int = 0,
        stream: int = 0,
        method: int = Method.INTERNAL,
        confidence: int = Confidence.OBSERVED,
        offset: int = 0,
        body: bytes = b"",
    ) -> bool:
        """Append an event; False when it was one that may be dropped and there was no room.

        What was dropped is counted, and the count becomes an event as soon as there is room.
        """
        written = self.writer.append(
            kind,
            process=process,
            stream=stream,
            method=method,
            confidence=confidence,
            offset=offset,
            meta=encode_meta(meta),
            body=body,
        )
        if not written:
            key = (kind, self.writer.full_reason)
            self._dropped_events[key] = self._dropped_events.get(key, 0) + 1
        elif self._dropped_events:
            self._report_dropped_events()
        return written

    def process_started(
        self,
        *,
        pid: int,
        argv: Sequence[Union[str, bytes]],
        cwd: Union[str, bytes],
        leader: bool,
        method: int,
        confidence: int = Confidence.OBSERVED,
        name: Optional[str] = None,
        parent: Optional[int] = None,
        streams: Sequence[str] = (),
        start_failed: Optional[str] = None,
        asked: Optional[Dict[str, Any]] = None,
    ) -> int:
        """Record a process and give it its number. `asked`: what a client has asked for."""
        self._processes += 1
        number = self._processes
        meta: Dict[str, Any] = {"leader": leader, **(asked or {})}
        if name is not None:
            meta["name"] = name
        meta["pid"] = pid
        if parent is not None:
            meta["parent"] = parent
        meta.update(self._argv(argv))
        meta["cwd"] = text_of(self.masker.mask(os.fsencode(cwd)))
        meta["streams"] = list(streams)
        if start_failed is not None:
            meta["startFailed"] = self.mask_text(start_failed)
        self.event(Kind.PROCESS_STARTED, meta, process=number, method=method, confidence=confidence)
        return number

    def process_exited(
        self,
        number: int,
        *,
        code: Optional[int],
        signal: Optional[str],
        reason: str,
        duration_us: int,
        method: int,
        confidence: int = Confidence.OBSERVED,
    ) -> None:
        """Record the end of a process, after what is known of its output."""
        for stream in self._open:
            if stream.process == number:
                stream.flush()
        self.event(
            Kind.PROCESS_EXITED,
            {"code": code, "signal": signal, "reason": reason, "durationUs": duration_us},
            process=number,
            method=method,
            confidence=confidence,
        )

    def stream(self, process: int, stream: int, method: int) -> RecordedStream:
        """Begin one stream of a process at offset 0."""
        made = RecordedStream(self, process, stream, method)
        self._streams.append(made)
        self._open.append(made)
        return made

    def mask_text(self, text: str) -> str:
        """Text for a meta, secrets masked."""
        return self.masker.mask(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def accepts(self) -> bool:
        """Whether the pipes of programs may be read now. Looks for room when there was none."""
        if self.policy == "drop":
            return True
        for stream in list(self._open):
            if stream.stuck:
                stream.write_out()
        if self.writer.room() and not any(stream.stuck for stream in self._open):
            self._stuck_since = None
            self._gave_up = False
            return True
        if self._gave_up:
            return True
        now = time.monotonic()
        if self.writer.full_reason != "disk-full":
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since >= _DISK_FULL_WAIT_SECONDS:
            self._gave_up = True
            return True
        return False

    def may_drop(self) -> bool:
        """Whether bytes that do not fit are given up now instead of kept until they do."""
        return self.policy == "drop" or self._gave_up

    def waiting(self) -> bool:
        """Whether bytes that were read are still waiting for room."""
        return any(stream.stuck for stream in self._open)

    def deadline(self) -> Optional[float]:
        """When `tick` must be called next (monotonic seconds), if nothing happens before."""
        due = self.writer.deadline()
        for stream in self._open:
            if stream.due is not None and not stream.stuck and (due is None or stream.due < due):
                due = stream.due
        if self.policy != "drop" and (self.waiting() or not self.writer.room()):
            look = time.monotonic() + _LOOK_FOR_ROOM_SECONDS
            due = look if due is None else min(due, look)
        return due

    def tick(self) -> None:
        """Write what has been gathered for long enough."""
        now = time.monotonic()
        for stream in list(self._open):
            if stream.due is not None and (stream.stuck or stream.due <= now):
                stream.tick(now)
        self.writer.tick()

    def forget(self, stream: RecordedStream) -> None:
        """A stream has been written to its end."""
        self._open.remove(stream)

    def totals(self) -> Dict[str, Any]:
        """What `recordSealed` says of processes and streams."""
        return {
            "processes": self._processes,
            "streams": [
                {
                    "process": stream.process,
                    "stream": STREAM_NAMES[stream.stream],
                    "bytes": stream.offset,
                    "dropped": stream.dropped,
                }
                for stream in self._streams
            ],
        }

    def seal(self, reason: str, exit: Optional[Dict[str, Any]]) -> None:
        """End the record. What still finds no room is dropped and named."""
        self._gave_up = True
        for stream in list(self._open):
            stream.close("abandoned")
        if self._dropped_events:
            self._report_dropped_events()
        self.writer.seal({"by": "agent", "reason": reason, "exit": exit, **self.totals()})

    def _argv(self, argv: Sequence[Union[str, bytes]]) -> Dict[str, Any]:
        shown: List[Any] = []
        left = _MAX_ARGV_BYTES
        for argument in argv:
            masked = self.masker.mask(os.fsencode(argument))
            if len(masked) > left:
                # A command line of megabytes is data, and a frame has an upper limit.
                shown.append(text_of(masked[: max(0, left)]))
                return {"argv": shown, "argvTruncated": True}
            left -= len(masked) + 1
            shown.append(text_of(masked))
        return {"argv": shown}

    def _report_dropped_events(self) -> None:
        dropped, self._dropped_events = self._dropped_events, {}
        for (kind, reason), count in dropped.items():
            what = _KIND_NAMES_OF_DROPPED.get(kind, str(kind))
            self.event(Kind.TELEMETRY_DROPPED, {"count": count, "what": what, "reason": reason})
