"""The whole log of a run, or some kinds of it, in order and in the memory of one batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from runs.export_format import EVENT_COLUMNS, EventRow
from runs.reading.rows import fetch

BATCH_BYTES = 2 * 1024**2
FIRST_ROWS, MIN_ROWS, MAX_ROWS = 128, 16, 4_096

_BATCH = f"""
    SELECT {EVENT_COLUMNS}, total FROM (
        SELECT {EVENT_COLUMNS}, size,
            sum(size) OVER (ORDER BY sequence ROWS UNBOUNDED PRECEDING) AS total
        FROM (
            SELECT {EVENT_COLUMNS}, length + octet_length(meta) AS size FROM run_event
            WHERE run_number = %(run)s AND sequence > %(after)s AND sequence <= %(last)s {{kinds}}
            ORDER BY sequence LIMIT %(rows)s
        ) next
    ) counted WHERE total - size < {BATCH_BYTES} ORDER BY sequence
"""
_ALL = _BATCH.format(kinds="")
_SOME = _BATCH.format(kinds="AND kind = ANY(%(kinds)s)")


def events(
    run_number: int, *, last: int, kinds: Collection[int] | None = None
) -> Iterator[EventRow]:
    """Yield the events up to sequence ``last``, of ``kinds`` or of all.

    Holds no transaction while the caller is slow; the log is append-only, so batches fit together.
    """
    place: dict[str, object] = {
        "run": run_number, "after": 0, "last": last, "rows": FIRST_ROWS
    }  # fmt: skip
    if kinds is not None:
        place["kinds"] = sorted(kinds)
    while rows := fetch(_ALL if kinds is None else _SOME, place):
        for *members, _ in rows:
            yield EventRow(*members)
        place["after"] = rows[-1][0]
        average = int(rows[-1][-1]) // len(rows) or 1
        place["rows"] = min(max(BATCH_BYTES // average, MIN_ROWS), MAX_ROWS)
