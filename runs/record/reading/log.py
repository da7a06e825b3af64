"""The whole log of a run, or some kinds of it, in order and in the memory of one batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from runs.record.export_format import EVENT_COLUMNS, EventRow
from runs.record.reading.rows import fetch

BATCH_BYTES = 2 * 1024**2
BATCH_EVENTS = 2_048

_BATCH = f"""
    SELECT {EVENT_COLUMNS} FROM (
        SELECT {EVENT_COLUMNS}, size,
            sum(size) OVER (ORDER BY sequence ROWS UNBOUNDED PRECEDING) AS total
        FROM (
            SELECT {EVENT_COLUMNS}, length + octet_length(meta) AS size FROM run_event
            WHERE run_number = %(run)s AND sequence BETWEEN %(first)s AND %(near)s {{kinds}}
        ) next
    ) counted WHERE total - size < {BATCH_BYTES} ORDER BY sequence
"""
_ALL = _BATCH.format(kinds="")
_SOME = _BATCH.format(kinds="AND kind = ANY(%(kinds)s)")
_NEXT = """
    SELECT min(sequence) FROM run_event
    WHERE run_number = %(run)s AND sequence > %(near)s AND sequence <= %(last)s
"""


def events(
    run_number: int, *, last: int, kinds: Collection[int] | None = None
) -> Iterator[EventRow]:
    """Yield the events up to sequence ``last``, of ``kinds`` or of all.

    Holds no transaction while the caller is slow; the log is append-only, so batches fit together.
    A batch is a range of numbers rather than a number of rows: however wrong PostgreSQL guesses how
    much is behind, it never sorts more than is sent.
    """
    place: dict[str, object] = {"run": run_number, "last": last}
    if kinds is not None:
        place["kinds"] = sorted(kinds)
    first: int | None = 1
    while first is not None and first <= last:
        near = min(last, first + BATCH_EVENTS - 1)
        place |= {"first": first, "near": near}
        rows = fetch(_ALL if kinds is None else _SOME, place)
        for row in rows:
            yield EventRow(*row)
        if rows:
            first = rows[-1][0] + 1
        else:
            (first,) = fetch(_NEXT, place)[0]
