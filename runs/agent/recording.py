"""One run's record while it is written: what is known becomes events of the spool.

Bytes of a stream are masked, gathered into chunks of at most 32 KiB or 20 ms, and numbered by their
raw offset. Nothing is lost in silence: bytes that find no room either make the program wait
(policy `block`) or are named as an exact range by a `telemetryDropped` event (policy `drop`).
"""

from __future__ import annotations

import base64
import json
import os
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from .frames import STREAM_NAMES, Confidence, Kind, Method
from .masking import Masker
from .spool import SpoolWriter

CHUNK_BYTES = 32768
COALESCE_SECONDS = 0.02
HIDDEN_SECONDS = 1.0
"""Hidden input is counted for this long before it is reported: the rhythm of typing a password
tells something about it."""

_MAX_ARGV_BYTES = 65536
_LOOK_FOR_ROOM_SECONDS = 0.02
# A program cannot be made to wait for ever for an operator to make room on a disk.
_DISK_FULL_PATIENCE_SECONDS = 10.0
_KIND_NAMES_OF_DROPPED = {
    Kind.FILE_CHANGE: "fileChange",
    Kind.FILE_DIFF_ENTRY: "fileDiffEntry",
    Kind.NETWORK_SOURCE_OBSERVED: "networkSourceObserved",
}


def encode_meta(meta: Dict[str, Any]) -> bytes:
    """A meta as its bytes: compact JSON in UTF-8."""
    if not meta:
        return b""
    return json.dumps(meta, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def text_of(value: bytes) -> Union[str, Dict[str, str]]:
    """Bytes as a meta holds them: text, or lossy text and base64 when they are not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {
            "text": value.decode("utf-8", "replace"),
            "base64": base64.b64encode(value).decode("ascii"),
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
    ) -> int:
        """Record a process and give it its number."""
        self._processes += 1
        number = self._processes
        meta: Dict[str, Any] = {"leader": leader}
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
        for stream in self._open:
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
        elif now - self._stuck_since >= _DISK_FULL_PATIENCE_SECONDS:
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
                shown.append(text_of(masked[:left]))
                return {"argv": shown, "argvTruncated": True}
            left -= len(masked) + 1
            shown.append(text_of(masked))
        return {"argv": shown}

    def _report_dropped_events(self) -> None:
        dropped, self._dropped_events = self._dropped_events, {}
        for (kind, reason), count in dropped.items():
            what = _KIND_NAMES_OF_DROPPED.get(kind, str(kind))
            self.event(Kind.TELEMETRY_DROPPED, {"count": count, "what": what, "reason": reason})


class RecordedStream:
    """One stream of one process: raw bytes in, events of the record out."""

    def __init__(self, recording: Recording, process: int, stream: int, method: int) -> None:
        self.process = process
        self.stream = stream
        self.offset = 0
        self.dropped = 0
        self.stuck = False
        self.due: Optional[float] = None
        self._recording = recording
        self._writer = recording.writer
        self._method = method
        self._masking = recording.masker.stream()
        self._shift = 0
        self._parts: List[bytes] = []
        self._size = 0
        self._written = 0
        self._masked: List[Tuple[int, int]] = []
        self._hidden = 0
        self._drop_from = 0
        self._drop_reason = ""
        self._closing: Optional[str] = None
        self._last_fed = 0.0

    def feed(self, data: bytes) -> None:
        """Take the next raw bytes of the stream."""
        if not data:
            return
        if self._hidden:
            self._report_hidden()
        self.offset += len(data)
        shown, ranges = self._masking.feed(data)
        self._gather(shown, ranges)
        self._last_fed = time.monotonic()
        if self._size >= CHUNK_BYTES:
            self._write(self._size - self._size % CHUNK_BYTES)
            self.due = self._last_fed + COALESCE_SECONDS
        elif self.due is None:
            self.due = self._last_fed + COALESCE_SECONDS

    def hide(self, count: int) -> None:
        """Take the next `count` bytes without what they are; only their number is recorded."""
        if not count:
            return
        self._release()
        self._write(self._size, give_up=True)
        self._report_drop()
        self.offset += count
        self._shift += count
        self._written += count
        if not self._hidden:
            self.due = time.monotonic() + HIDDEN_SECONDS
        self._hidden += count

    def flush(self) -> None:
        """Write what was gathered; a possible beginning of a secret is still held back."""
        self._write(self._size)

    def tick(self, now: float) -> None:
        """Write what is due."""
        if self._hidden:
            self._report_hidden()
        if self._masking.held and now - self._last_fed >= COALESCE_SECONDS:
            self._release()
        self.flush()
        if not self._size and not self._masking.held:
            self.due = None
        self._finish()

    def write_out(self) -> None:
        """Try again to write what found no room."""
        self.flush()
        self._finish()

    def close(self, reason: str) -> None:
        """The stream has ended (`eof`) or is not read any longer (`abandoned`).

        The event follows once everything before it is written. A second call changes nothing.
        """
        if self._closing is None:
            if self._hidden:
                self._report_hidden()
            self._release()
            self._closing = reason
        self.flush()
        self._finish()

    def _finish(self) -> None:
        if self._closing is None or self._size:
            return
        self._report_drop()
        self._recording.event(
            Kind.PROCESS_STREAM_CLOSED,
            {"reason": self._closing},
            process=self.process,
            stream=self.stream,
            method=self._method,
            offset=self.offset,
        )
        self.due = None
        self._recording.forget(self)

    def _release(self) -> None:
        shown, ranges = self._masking.flush()
        self._gather(shown, ranges)

    def _gather(self, shown: bytes, ranges: List[Tuple[int, int]]) -> None:
        if shown:
            self._parts.append(shown)
            self._size += len(shown)
        if ranges:
            shift = self._shift
            self._masked += [(start + shift, end + shift) for start, end in ranges]

    def _write(self, count: int, *, give_up: bool = False) -> None:
        """Write the first `count` gathered bytes in chunks, as far as there is room."""
        if not count:
            return
        gathered = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        done = 0
        while done < count:
            piece = gathered[done : min(done + CHUNK_BYTES, count)]
            if not self._append(piece, give_up or self._recording.may_drop()):
                break
            done += len(piece)
        self._size -= done
        self._parts = [gathered[done:]] if self._size else []
        self.stuck = done < count
        if not self._size:
            self.due = self._last_fed + COALESCE_SECONDS if self._masking.held else None

    def _append(self, piece: bytes, may_drop: bool) -> bool:
        start, end = self._written, self._written + len(piece)
        if self._drop_reason and self._writer.room():
            self._report_drop()
        written = not self._drop_reason and self._writer.append(
            Kind.IO_CHUNK,
            process=self.process,
            stream=self.stream,
            method=self._method,
            confidence=Confidence.OBSERVED,
            offset=start,
            meta=self._masked_within(start, end),
            body=piece,
        )
        if not written:
            if not may_drop:
                return False
            if not self._drop_reason:
                self._drop_from, self._drop_reason = start, self._writer.full_reason
            self.dropped += len(piece)
        if self._masked:
            self._masked = [span for span in self._masked if span[1] > end]
        self._written = end
        return True

    def _masked_within(self, start: int, end: int) -> bytes:
        if not self._masked:
            return b""
        inside = [[max(a, start), min(b, end)] for a, b in self._masked if a < end and b > start]
        return encode_meta({"masked": inside}) if inside else b""

    def _report_drop(self) -> None:
        if not self._drop_reason:
            return
        meta = {
            "toOffset": self._written,
            "bytes": self._written - self._drop_from,
            "reason": self._drop_reason,
        }
        self._drop_reason = ""
        self._recording.event(
            Kind.TELEMETRY_DROPPED,
            meta,
            process=self.process,
            stream=self.stream,
            offset=self._drop_from,
        )

    def _report_hidden(self) -> None:
        count, self._hidden = self._hidden, 0
        start = self.offset - count
        self._recording.event(
            Kind.INPUT_HIDDEN,
            {"bytes": count},
            process=self.process,
            stream=self.stream,
            method=self._method,
            offset=start,
        )
