"""What a record does not hold.

``complete`` has one definition: **the record has ended in order and nothing of it is missing**. It
is sealed, every number from 1 to the last one is there, no byte of a recorded stream was dropped,
no watcher overflowed, and no source ended without saying so; in short: it is sealed and has no loss
span. What was not observed in the first place is no loss: that is ``coverage``. Neither are
bytes that were masked, nor input that was hidden on purpose.

A record without losses is answered from its head alone, however long it is.
"""

from __future__ import annotations

from typing import Any

from controlplane.spelling import format_timestamp
from runs.agent.record.frames import STREAM_NAMES
from runs.models import Run, RunHead, RunLoss
from runs.record.reading.rows import fetch

MAX_SPANS = 5_000

_TOTALS = """
    SELECT kind, count(*), coalesce(sum(count), 0)::text FROM run_loss
    WHERE run_number = %(run)s GROUP BY kind
"""


def loss(run: Run, head: RunHead | None) -> dict[str, Any]:
    """Return the members of the answer; ``head`` is None for a run that is not recorded.

    At most ``MAX_SPANS`` spans are named; the counts are those of all.
    """
    spans: list[RunLoss] = []
    totals: dict[str, tuple[int, str]] = {}
    if head is not None and head.loss_count:
        rows = RunLoss.objects.filter(run_number=run.number).order_by("position")
        spans = list(rows[:MAX_SPANS])
        found = fetch(_TOTALS, {"run": run.number})
        totals = {kind: (spans_of, count) for kind, spans_of, count in found}
    return {
        "runId": str(run.pk),
        "droppedEventCount": totals.get(RunLoss.Kind.DROPPED_EVENT, (0, "0"))[1],
        "sequenceGapCount": totals.get(RunLoss.Kind.SEQUENCE_GAP, (0, "0"))[0],
        "watchOverflowCount": totals.get(RunLoss.Kind.WATCH_OVERFLOW, (0, "0"))[0],
        "earlyClose": RunLoss.Kind.EARLY_CLOSE in totals,
        "spans": [_span(span) for span in spans],
        "spansTruncated": sum(count for count, _ in totals.values()) > len(spans),
        "complete": head is not None and head.sealed_at is not None and head.loss_count == 0,
        "coverage": head.coverage if head is not None else {},
    }


def _span(span: RunLoss) -> dict[str, Any]:
    members: dict[str, Any] = {
        "kind": span.kind,
        "detectedVia": span.detected_via,
        "detectedAt": format_timestamp(span.detected_at),
    }
    numbers = {
        "fromSequence": span.from_sequence,
        "toSequence": span.to_sequence,
        "processId": span.process_number,
        "fromOffset": span.from_offset,
        "toOffset": span.to_offset,
        "droppedCount": span.count,
    }
    members |= {name: str(number) for name, number in numbers.items() if number is not None}
    if span.stream:
        members["stream"] = STREAM_NAMES.get(span.stream, "unknown")
    return {**members, "reason": span.reason} if span.reason else members
