"""What the command of a one-shot run writes, from any byte on, in the order in which it came.

Several streams are read as one, each byte with its place: the offset in its stream, which is what
the scrollback counts too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from runs.agent.record.frames import MAX_FRAME_BYTES, Kind, Stream
from runs.record.reading.contradictions import is_contradicted
from runs.record.reading.rows import fetch

WINDOW_EVENTS = 512
"""How many events are looked at in one statement."""

_LEADER = "(SELECT min(process_number) FROM run_process WHERE run_number = %(run)s AND leader)"
_STATE = f"""
    SELECT head.last_sequence, places.stream,
        coalesce((head.stream_bytes ->> ({_LEADER} || '/' || places.stream))::bigint, 0)
    FROM run_head AS head CROSS JOIN unnest(%(streams)s) AS places (stream)
    WHERE head.run_number = %(run)s
"""
_CHUNKS = f"""
    run_number = %(run)s AND kind = {Kind.IO_CHUNK} AND process_number = {_LEADER}
    AND stream = %(stream)s AND length > 0
"""
_COVERING = f"""
    SELECT sequence FROM (
        SELECT sequence, stream_offset + length AS reached FROM run_event
        WHERE {_CHUNKS} AND stream_offset <= %(at)s ORDER BY stream_offset DESC LIMIT 1
    ) AS before WHERE reached > %(at)s
"""
_FOLLOWING = f"""
    SELECT sequence FROM run_event
    WHERE {_CHUNKS} AND stream_offset >= %(at)s ORDER BY stream_offset LIMIT 1
"""
_FIRST = f"SELECT coalesce(({_COVERING}), ({_FOLLOWING}))"
# Where chunks overlap, the one that was told first of those that reach behind the place.
_FIRST_OF_CONTRADICTED = f"""
    SELECT min(sequence) FROM run_event
    WHERE {_CHUNKS} AND stream_offset > %(at)s - {MAX_FRAME_BYTES}
        AND stream_offset + length > %(at)s
"""
_PROCESS = f"SELECT {_LEADER}"
# What of a chunk is before the place is not even read: bodies lie where parts of them can be.
_BEFORE = f"""
    least(length, greatest(0, CASE stream WHEN {Stream.STDOUT} THEN %(stdout)s::bigint
        WHEN {Stream.STDERR} THEN %(stderr)s::bigint ELSE %(pty)s::bigint END - stream_offset))
"""
_EVENTS = f"""
    SELECT sequence, stream, stream_offset + before AS at, length - before AS size,
        substr(body, before::int + 1, %(room)s) AS bytes
    FROM (
        SELECT *, sum(length - before) OVER (ORDER BY sequence) AS total FROM (
            SELECT sequence, stream, stream_offset, length, body, {_BEFORE} AS before
            FROM run_event
            WHERE run_number = %(run)s AND sequence BETWEEN %(first)s AND %(near)s
                AND kind = {Kind.IO_CHUNK} AND stream = ANY(%(streams)s)
                AND process_number = {_LEADER}
        ) AS chunk
    ) AS counted
    WHERE total - (length - before) < %(room)s
"""
# One statement, so that the events and what the head says of them are of one moment.
_TAIL = f"""
    SELECT head.last_sequence, head.sealed_at IS NOT NULL, head.removed_at, event.*
    FROM run_head AS head LEFT JOIN ({_EVENTS}) AS event ON true
    WHERE head.run_number = %(run)s ORDER BY event.sequence
"""
_NEXT = "SELECT min(sequence) FROM run_event WHERE run_number = %(run)s AND sequence >= %(first)s"


@dataclass(frozen=True, slots=True)
class OutputState:
    """Where a record stands: its last event, and where each of the streams ends."""

    last_sequence: int
    ends: Mapping[int, int]


@dataclass(slots=True)
class OutputPlace:
    """A place in the output of a run: behind an event, and behind an offset of each stream."""

    sequence: int
    offsets: dict[int, int]


@dataclass(slots=True)
class OutputTail:
    """What follows a place: pieces with their streams and offsets.

    ``more``: there is more already. ``ended``: the record is sealed, and nothing follows.
    """

    pieces: list[tuple[int, int, bytes]] = field(default_factory=list)
    more: bool = False
    ended: bool = False
    removed_at: datetime | None = None


def output_state(run_number: int, streams: Sequence[int]) -> OutputState:
    """Return where the record stands."""
    rows = fetch(_STATE, {"run": run_number, "streams": list(streams)})
    ends = dict.fromkeys(streams, 0) | {stream: end for _, stream, end in rows}
    return OutputState(rows[0][0] if rows else 0, ends)


def place_at(run_number: int, offsets: Mapping[int, int], known: OutputState) -> OutputPlace:
    """Return the place behind these offsets, of which ``known`` says that they are there."""
    first = known.last_sequence + 1
    ((leader,),) = fetch(_PROCESS, {"run": run_number})
    for stream, offset in offsets.items():
        place = {"run": run_number, "stream": stream, "at": offset}
        contradicted = is_contradicted(place | {"process": leader})
        ((found,),) = fetch(_FIRST_OF_CONTRADICTED if contradicted else _FIRST, place)
        first = first if found is None else min(first, found)
    return OutputPlace(first - 1, dict(offsets))


def read_tail(run_number: int, place: OutputPlace, *, room: int) -> OutputTail | None:
    """Return what follows ``place``, at most ``room`` bytes, and move the place behind it.

    None for a run that has no record. Holds no more than that, however large the record is.
    """
    streams = list(place.offsets)
    first, near = place.sequence + 1, place.sequence + WINDOW_EVENTS
    asked = {"run": run_number, "streams": streams, "room": room, "first": first, "near": near}
    for name, stream in _OFFSETS.items():
        asked[name] = place.offsets.get(stream, 0)
    rows = fetch(_TAIL, asked)
    if not rows:
        return None
    last, sealed, removed_at = rows[0][:3]
    found = OutputTail(removed_at=removed_at)
    events = [row[3:] for row in rows if row[3] is not None]
    for sequence, stream, at, size, body in events:
        # Chunks do not overlap unless a workspace forged them; the one told first counts.
        known = max(0, place.offsets[stream] - at)
        piece = body[known : known + room]
        if piece:
            found.pieces.append((stream, at + known, piece))
            place.offsets[stream] = at + known + len(piece)
            room -= len(piece)
        if known + len(piece) < size:
            place.sequence = sequence - 1
            found.more = True
            return found
        place.sequence = sequence
    if not events:
        place.sequence = max(place.sequence, min(near, last))
        if place.sequence < last:
            # Numbers may be missing here: many, when a workspace made them.
            ((following,),) = fetch(_NEXT, {"run": run_number, "first": place.sequence + 1})
            place.sequence = last if following is None else following - 1
    found.more = place.sequence < last
    found.ended = sealed and not found.more
    return found


_OFFSETS = {"stdout": Stream.STDOUT, "stderr": Stream.STDERR, "pty": Stream.PTY_OUTPUT}
