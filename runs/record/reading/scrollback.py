"""One stream of one process, byte for byte, and what is missing of it.

A stream is its chunks in the order of their offsets. A range that no chunk covers is *missing*, and
has a reason: a span of ``run_loss``, or input that was hidden because the terminal did not echo.
``fromOffset`` and ranges count bytes of the raw stream, missing ones included; ranges are
``[from, to)``.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runs.agent.record.frames import STREAM_NAMES, Kind, Stream
from runs.record.ingest import meta as metas
from runs.record.reading import contradictions
from runs.record.reading.rows import fetch

BATCH_BYTES = 2 * 1024**2
"""About what is held at a time: a frame is at most twice as long."""
MAX_ROWS = 16_384

_CHUNKS = f"""
    run_number = %(run)s AND kind = {Kind.IO_CHUNK} AND process_number = %(process)s
    AND stream = %(stream)s AND sequence <= %(at)s AND length > 0
"""
_BATCH = f"""
    SELECT stream_offset, body FROM (
        SELECT stream_offset, length, body,
            sum(length) OVER (ORDER BY stream_offset ROWS UNBOUNDED PRECEDING) AS total
        FROM (
            SELECT stream_offset, length, body FROM run_event
            WHERE {_CHUNKS} AND stream_offset >= %(offset)s AND stream_offset < %(end)s
            ORDER BY stream_offset LIMIT {MAX_ROWS}
        ) next
    ) counted WHERE total - length < {BATCH_BYTES} ORDER BY stream_offset
"""
_NEXT = f"""
    SELECT min(stream_offset) FROM run_event
    WHERE {_CHUNKS} AND stream_offset >= %(offset)s AND stream_offset < %(end)s
"""
_COVERING = f"""
    SELECT stream_offset FROM run_event WHERE {_CHUNKS} AND stream_offset <= %(offset)s
    ORDER BY stream_offset DESC LIMIT 1
"""
_LAST = f"""
    SELECT stream_offset + length FROM run_event WHERE {_CHUNKS}
    ORDER BY stream_offset DESC LIMIT 1
"""
_SPANS = """
    SELECT from_offset, to_offset, reason FROM run_loss
    WHERE run_number = %(run)s AND process_number = %(process)s AND stream = %(stream)s
        AND from_offset IS NOT NULL AND (from_sequence IS NULL OR from_sequence <= %(at)s)
    ORDER BY from_offset
"""
_HIDDEN = f"""
    SELECT stream_offset, meta FROM run_event
    WHERE run_number = %(run)s AND kind = {Kind.INPUT_HIDDEN} AND process_number = %(process)s
        AND stream = %(stream)s AND sequence <= %(at)s
    ORDER BY sequence
"""
_CLOSED = f"""
    SELECT stream_offset, meta FROM run_event
    WHERE run_number = %(run)s AND kind = {Kind.PROCESS_STREAM_CLOSED}
        AND process_number = %(process)s AND stream = %(stream)s AND sequence <= %(at)s
    ORDER BY sequence LIMIT 1
"""
HIDDEN = "hidden: typed while the terminal did not echo"
UNKNOWN = "not in the record"


@dataclass(frozen=True, slots=True)
class Missing:
    """A range ``[start, end)`` of a stream that the record does not hold."""

    start: int
    end: int
    reason: str

    def to_wire(self) -> dict[str, str]:
        """Return the members of an entry of ``missing``."""
        return {
            "fromOffset": str(self.start),
            "toOffset": str(self.end),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream as it was known when the record had reached sequence ``at``."""

    run_number: int
    process: int
    stream: int
    at: int
    end: int
    """Where the stream ends as far as is known, missing ranges included."""
    closed: bool
    """It ended in order: nothing comes behind ``end``."""
    spans: Sequence[Missing]
    """What is declared as missing; ordered by their starts."""
    contradicted: bool
    """A workspace forged chunks that overlap."""

    def missing(self, start: int, end: int) -> list[Missing]:
        """Return what is declared missing between two offsets, without overlaps."""
        found: list[Missing] = []
        for span in self.spans:
            low, high = max(span.start, start), min(span.end, end)
            if found:
                low = max(low, found[-1].end)
            if low < high:
                found.append(Missing(low, high, span.reason))
        return found

    def chunks(self, start: int, limit: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes from offset ``start`` on, each piece with its offset.

        Ends at ``end``, and after ``limit`` bytes. Takes the memory of one batch and holds no
        transaction while the caller is slow; the log is append-only, so batches fit together.
        """
        if self.contradicted:
            stream = self._place()
            yield from contradictions.chunks(stream, start=start, end=self.end, limit=limit)
            return
        place = self._place(offset=start)
        covering = fetch(_COVERING, place)
        position, offset = start, covering[0][0] if covering else start
        while limit is None or limit > 0:
            # A range of offsets rather than a number of rows: however wrong PostgreSQL guesses how
            # much is behind, it never sorts more than is sent.
            wanted = BATCH_BYTES if limit is None else max(position - offset, 0) + limit
            near = min(self.end, offset + min(wanted, BATCH_BYTES))
            batch = fetch(_BATCH, place | {"offset": offset, "end": near})
            if not batch:
                (following,) = fetch(_NEXT, place | {"offset": near, "end": self.end})[0]
                if following is None:
                    return
                offset = following
                continue
            for begin, body in batch:
                piece = body[max(0, position - begin) : self.end - begin][:limit]
                if not piece:
                    continue
                begin = max(begin, position)
                position = begin + len(piece)
                if limit is not None:
                    limit -= len(piece)
                yield begin, piece
                if limit == 0:
                    return
            last, body = batch[-1]
            offset = max(position, last + len(body))

    def _place(self, **more: int) -> dict[str, Any]:
        return _place(self.run_number, self.process, self.stream, self.at) | more


def _place(run_number: int, process: int, stream: int, at: int) -> dict[str, Any]:
    return {"run": run_number, "process": process, "stream": stream, "at": at}


def open_stream(run_number: int, process: int, stream: int, at: int) -> StreamView:
    """Return a stream of a process as it was known at sequence ``at``."""
    place = _place(run_number, process, stream, at)
    closed = fetch(_CLOSED, place)
    contradicted = contradictions.is_contradicted(place)
    last = [(contradictions.last_offset(place),)] if contradicted else fetch(_LAST, place)
    spans = [(start, end, reason) for start, end, reason in fetch(_SPANS, place)]
    open_ended = any(end is None for _, end, _ in spans)
    missing = [Missing(start, end, reason) for start, end, reason in spans if end is not None]
    if stream == Stream.PTY_INPUT:
        missing += _hidden(place)
    missing.sort(key=lambda span: (span.start, span.end))
    ends = [row[0] for row in (*closed, *last) if row[0] is not None]
    ends += [span.end for span in missing]
    return StreamView(
        run_number,
        process,
        stream,
        at,
        end=max(ends, default=0),
        closed=bool(closed) and not open_ended,
        spans=missing,
        contradicted=contradicted,
    )


def _hidden(place: dict[str, Any]) -> list[Missing]:
    spans = []
    for offset, meta in fetch(_HIDDEN, place):
        count = metas.integer(metas.read(meta).get("bytes"), high=2**62)
        if count:
            spans.append(Missing(offset, offset + count, HIDDEN))
    return spans


def scrollback(view: StreamView, *, start: int, limit: int) -> dict[str, Any]:
    """Return a piece of at most ``limit`` bytes as the members of the JSON answer.

    ``complete``: everything of the stream from ``start`` to its end is here, and the end is known.
    """
    pieces: list[bytes] = []
    missing: list[Missing] = []
    position = start
    for offset, piece in view.chunks(start, limit):
        missing += _holes(view, position, offset)
        pieces.append(piece)
        position = offset + len(piece)
    content = b"".join(pieces)
    if len(content) < limit:
        missing += _holes(view, position, view.end)
        position = max(position, view.end)
    more = position < view.end
    answer: dict[str, Any] = {
        "processId": str(view.process),
        "stream": STREAM_NAMES[view.stream],
        "byteCount": len(content),
        "fromOffset": str(start),
        "contentBase64": base64.b64encode(content).decode(),
        "missing": [span.to_wire() for span in missing],
        "complete": view.closed and not missing and not more,
    }
    return {**answer, "nextOffset": str(position)} if more else answer


def _holes(view: StreamView, start: int, end: int) -> Iterable[Missing]:
    """Yield what is missing between two pieces, each part with its reason."""
    position = start
    for span in view.missing(start, end):
        if position < span.start:
            yield Missing(position, span.start, UNKNOWN)
        yield span
        position = span.end
    if position < end:
        yield Missing(position, end, UNKNOWN)
