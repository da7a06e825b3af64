"""The beginning of what the command of a one-shot run wrote, in one statement."""

from __future__ import annotations

from dataclasses import dataclass

from runs.agent.record.frames import Kind, Stream
from runs.record.reading.rows import fetch

_STREAMS = (Stream.STDOUT, Stream.STDERR, Stream.PTY_OUTPUT)
# The chunks of each stream from its beginning until the limit is passed, beside where it ends.
_BEGINNING = f"""
    WITH leader AS (
        SELECT min(process_number) AS number FROM run_process
        WHERE run_number = %(run)s AND leader
    ), counted AS (
        SELECT stream, stream_offset, length, body,
            sum(length) OVER (PARTITION BY stream ORDER BY stream_offset
                ROWS UNBOUNDED PRECEDING) AS total
        FROM run_event, leader
        WHERE run_number = %(run)s AND kind = {Kind.IO_CHUNK} AND process_number = leader.number
            AND stream = ANY(%(streams)s) AND length > 0 AND stream_offset < %(limit)s
    )
    SELECT places.stream,
        coalesce((SELECT (stream_bytes ->> (leader.number || '/' || places.stream))::bigint
            FROM run_head WHERE run_number = %(run)s), 0),
        counted.stream_offset, counted.body
    FROM unnest(%(streams)s) AS places (stream) CROSS JOIN leader
    LEFT JOIN counted ON counted.stream = places.stream
        AND counted.total - counted.length < %(limit)s
    ORDER BY places.stream, counted.stream_offset
"""


@dataclass(slots=True)
class Output:
    """The beginning of a stream: its bytes, and whether they are all that was written."""

    content: bytes = b""
    whole: bool = True


def beginnings(run_number: int, *, limit: int) -> dict[int, Output]:
    """Return at most ``limit`` bytes of each output of a run's first command, by stream.

    What the record does not hold is left out, and the output is not whole then.
    """
    found = {int(stream): Output() for stream in _STREAMS}
    pieces: dict[int, list[bytes]] = {stream: [] for stream in found}
    ends: dict[int, int] = dict.fromkeys(found, 0)
    reached: dict[int, int] = dict.fromkeys(found, 0)
    place = {"run": run_number, "limit": limit, "streams": list(found)}
    for stream, end, offset, body in fetch(_BEGINNING, place):
        ends[stream] = end
        if body is None:
            continue
        # Chunks do not overlap unless a workspace forged them; the first one counts.
        piece = bytes(body)[max(0, reached[stream] - offset) : max(0, limit - offset)]
        found[stream].whole &= offset <= reached[stream]
        pieces[stream].append(piece)
        reached[stream] = max(reached[stream], min(offset + len(body), limit))
    for stream, output in found.items():
        output.content = b"".join(pieces[stream])
        output.whole &= reached[stream] >= ends[stream]
    return found
