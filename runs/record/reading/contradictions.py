"""Streams of which a workspace has told the same bytes twice, so that chunks overlap.

No sound agent does. The record says that nobody can know which bytes were real (``contradicted`` in
its losses), and every reader must still see the same ones: where a page begins must not decide what
is on it. So what is shown at an offset depends on the chunks alone: those bytes that the chunk has
which begins last of all that reach over it; the longest of those that begin together; the first of
equal ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from runs.agent.record.frames import MAX_FRAME_BYTES, Kind
from runs.record.ingest.derived import CONTRADICTED, UNTRACKED
from runs.record.reading.rows import fetch

ROWS = 4096
PIECES = 512
PIECE_BYTES = 2 * 1024**2
"""So many pieces, and about so many bytes, are fetched at a time."""

_CHUNKS = f"""
    run_number = %(run)s AND kind = {Kind.IO_CHUNK} AND process_number = %(process)s
    AND stream = %(stream)s AND sequence <= %(at)s AND length > 0
"""
_CONTRADICTED = f"""
    SELECT EXISTS (
        SELECT FROM run_loss WHERE run_number = %(run)s AND (
            process_number = %(process)s AND stream = %(stream)s
                AND starts_with(reason, '{CONTRADICTED}')
            OR process_number IS NULL AND starts_with(reason, '{UNTRACKED}')
        )
    )
"""
_END = f"""
    SELECT max(stream_offset + length) FROM run_event
    WHERE {_CHUNKS} AND stream_offset > {-MAX_FRAME_BYTES} + (
        SELECT max(stream_offset) FROM run_event WHERE {_CHUNKS}
    )
"""
# Those that reach over a place and over all that begin later than they do.
_OVER = f"""
    SELECT sequence, stream_offset, length FROM (
        SELECT sequence, stream_offset, length, max(stream_offset + length) OVER (
            ORDER BY stream_offset DESC, length DESC, sequence
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS reached
        FROM run_event
        WHERE {_CHUNKS} AND stream_offset > %(offset)s - {MAX_FRAME_BYTES}
            AND stream_offset <= %(offset)s
    ) AS before
    WHERE stream_offset + length > greatest(%(offset)s, coalesce(reached, 0))
    ORDER BY stream_offset
"""
_FOLLOWING = f"""
    SELECT DISTINCT ON (stream_offset) sequence, stream_offset, length FROM run_event
    WHERE {_CHUNKS} AND stream_offset > %(offset)s AND stream_offset < %(end)s
    ORDER BY stream_offset, length DESC, sequence LIMIT {ROWS}
"""
_BODIES = """
    SELECT substr(event.body, part.skipped + 1, part.size)
    FROM unnest(%(sequences)s::bigint[], %(skipped)s::int[], %(sizes)s::int[])
        WITH ORDINALITY AS part (sequence, skipped, size, place)
    JOIN run_event AS event ON event.run_number = %(run)s AND event.sequence = part.sequence
    ORDER BY part.place
"""


class _Chunk(NamedTuple):
    sequence: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class _Part(NamedTuple):
    """What is shown of a chunk: ``size`` bytes from offset ``start`` of the stream on."""

    start: int
    size: int
    chunk: _Chunk


def is_contradicted(place: Mapping[str, Any]) -> bool:
    """Return whether chunks of the stream may overlap; ``place`` is the stream and ``at``."""
    ((contradicted,),) = fetch(_CONTRADICTED, place)
    return bool(contradicted)


def last_offset(place: Mapping[str, Any]) -> int:
    """Return where the chunk ends that reaches farthest."""
    ((end,),) = fetch(_END, place)
    return int(end or 0)


def chunks(
    place: Mapping[str, Any], *, start: int, end: int, limit: int | None
) -> Iterator[tuple[int, bytes]]:
    """Yield what is shown from offset ``start`` to ``end``, at most ``limit`` bytes of it.

    Takes the memory of a batch, and that of one number for each chunk that lies inside of another.
    """
    left = limit
    waiting: list[_Part] = []
    size = 0
    for part in _parts(place, start, end):
        if left is not None:
            if not left:
                break
            part = part._replace(size=min(part.size, left))
            left -= part.size
        waiting.append(part)
        size += part.size
        if size >= PIECE_BYTES or len(waiting) == PIECES:
            yield from _with_bytes(place, waiting)
            waiting, size = [], 0
    if waiting:
        yield from _with_bytes(place, waiting)


def _with_bytes(place: Mapping[str, Any], parts: list[_Part]) -> Iterator[tuple[int, bytes]]:
    asked = {
        "run": place["run"],
        "sequences": [part.chunk.sequence for part in parts],
        "skipped": [part.start - part.chunk.offset for part in parts],
        "sizes": [part.size for part in parts],
    }
    for part, (body,) in zip(parts, fetch(_BODIES, asked), strict=True):
        yield part.start, body


def _parts(place: Mapping[str, Any], start: int, end: int) -> Iterator[_Part]:
    # Whatever lies below another one reaches farther than that.
    over = [_Chunk(*row) for row in fetch(_OVER, {**place, "offset": start})]
    position = start
    for chunk in chain(_following(place, start, end), [None]):
        until = end if chunk is None else chunk.offset
        while over and position < until:
            upper = over[-1]
            if upper.end <= position:
                over.pop()
                continue
            reached = min(upper.end, until)
            yield _Part(position, reached - position, upper)
            position = reached
        position = max(position, until)
        if chunk is not None:
            while over and over[-1].end <= chunk.end:
                over.pop()
            over.append(chunk)


def _following(place: Mapping[str, Any], start: int, end: int) -> Iterator[_Chunk]:
    offset = start
    while rows := fetch(_FOLLOWING, {**place, "offset": offset, "end": end}):
        for row in rows:
            yield _Chunk(*row)
        offset = rows[-1][1]
