"""One stream of one process on its way into the record: masked, gathered, with raw offsets."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Protocol, Tuple

from ..masking.masker import Masker
from .event_meta import encode_meta
from .frames import Confidence, Kind
from .spool import SpoolWriter

CHUNK_BYTES = 32768
COALESCE_SECONDS = 0.02
"""So long bytes are gathered behind others. The first ones after a pause are written at once."""
HIDDEN_SECONDS = 1.0
"""Hidden input is counted for this long before it is reported: the rhythm of typing a password
tells something about it."""


class Record(Protocol):
    """What a stream needs of the record that it is part of; `Recording` is it."""

    writer: SpoolWriter
    masker: Masker

    def event(
        self,
        kind: int,
        meta: Dict[str, Any],
        *,
        process: int = 0,
        stream: int = 0,
        method: int = ...,
        confidence: int = ...,
        offset: int = 0,
        body: bytes = b"",
    ) -> bool:
        """Append an event; False when there was no room for it."""

    def may_drop(self) -> bool:
        """Whether output without room is left out now, instead of waited for."""

    def forget(self, stream: RecordedStream) -> None:
        """The stream has told its end."""


class RecordedStream:
    """One stream of one process: raw bytes in, events of the record out."""

    def __init__(self, recording: Record, process: int, stream: int, method: int) -> None:
        self.process = process
        self.stream = stream
        self.offset = 0
        self.dropped = 0
        self.stuck = False
        self.due: Optional[float] = None
        self.show: Optional[Callable[[bytes], None]] = None
        """Is given all bytes once they are masked, also those that find no room in the record."""
        self._recording = recording
        self._writer = recording.writer
        self._method = method
        self._masking = recording.masker.stream()
        self._shift = 0
        self._raw: List[bytes] = []
        self._raw_size = 0
        self._parts: List[bytes] = []
        self._size = 0
        self._written = 0
        self._masked: List[Tuple[int, int]] = []
        self._hidden = 0
        self._drop_from = 0
        self._drop_reason = ""
        self._closing: Optional[str] = None
        self._finished = False
        self._last_fed = 0.0
        self._gathers_until = 0.0

    def feed(self, data: bytes) -> None:
        """Take the next raw bytes of the stream."""
        if not data:
            return
        if self._hidden:
            self._report_hidden()
        self.offset += len(data)
        self._raw.append(data)
        self._raw_size += len(data)
        self._last_fed = time.monotonic()
        if self._size + self._raw_size >= CHUNK_BYTES:
            self._mask()
        if self._size >= CHUNK_BYTES:
            self._write(self._size - self._size % CHUNK_BYTES)
            self.due = self._gathers_until = self._last_fed + COALESCE_SECONDS
        elif self.due is None:
            self.due = max(self._last_fed, self._gathers_until)

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
        self._mask()
        self._write(self._size)

    def tick(self, now: float) -> None:
        """Write what is due."""
        if self._hidden:
            self._report_hidden()
        self._mask()
        if self._masking.held and now - self._last_fed >= COALESCE_SECONDS:
            self._release()
        self.flush()
        self._gathers_until = now + COALESCE_SECONDS
        if not self._size:
            # What is held back is released only when nothing has followed it for a while.
            self.due = self._last_fed + COALESCE_SECONDS if self._masking.held else None
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
        if self._closing is None or self._size or self._finished:
            return
        self._finished = True
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

    def _mask(self) -> None:
        """Mask what was gathered: many small pieces cost as much as one that is large."""
        if self._raw:
            raw = self._raw[0] if len(self._raw) == 1 else b"".join(self._raw)
            self._raw, self._raw_size = [], 0
            self._gather(*self._masking.feed(raw))

    def _release(self) -> None:
        self._mask()
        shown, ranges = self._masking.flush()
        self._gather(shown, ranges)

    def _gather(self, shown: bytes, ranges: List[Tuple[int, int]]) -> None:
        if shown:
            self._parts.append(shown)
            self._size += len(shown)
            if self.show is not None:
                self.show(shown)
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
