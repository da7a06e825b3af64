"""Writing records: one source after the other, each event exactly once, ended for good by a seal.

Every function is one transaction that begins by locking the head of the record, so any number of
writers may try at once. A row of ``run`` is locked after the head: callers do not hold one.

::

    StoreError
    ├── SourceMismatch   another source is at the record, or has followed the one named
    ├── RecordSealed     the record has ended
    └── SourceRefused    what the source sends from here on can be part of no record
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import DatabaseError, connection, transaction

from controlplane.metrics.families import RECORD_BATCHES, RECORD_BYTES, RECORD_EVENTS
from controlplane.work.leases import Fence
from controlplane.work.notifications import announce
from runs.agent.record import frames
from runs.agent.record.frames import STREAM_NAMES, Confidence, Event, Kind, Method, Stream
from runs.models import PARTITION_RUNS, Run, RunHead
from runs.record import egress_endings, room, seal, settlement
from runs.record.head_locks import locked, locked_by_holder
from runs.record.ingest import meta as metas
from runs.record.ingest import tables
from runs.record.ingest.batch import LAST_SEQUENCE, Batch
from runs.record.ingest.derived import Derived, Loss
from runs.record.ingest.meta import INT64_MAX

CONTROL_PLANE = "control-plane"
"""The source of the end of a record that its own source could not end."""

OUTPUTS = frozenset({Stream.STDOUT, Stream.STDERR, Stream.PTY_OUTPUT})

BATCH_BYTES = 4 * 1024 * 1024
BATCH_EVENTS = 8192
"""How much to append at once: a commit costs as much as storing a MiB, or 2,000 small events."""

CHANNEL = "run_events"
"""Where committed batches are announced: a hint, whoever listens asks the tables."""


class StoreError(Exception):
    """Something cannot be written to a record."""


class SourceMismatch(StoreError):
    """Another source is at the record, or has followed the one named."""


class RecordSealed(StoreError):
    """The record has ended; nothing comes after its end."""


class SourceRefused(StoreError):
    """What a source sends from some place on can be part of no record; what came before is stored.

    The bytes are no event, or its sequence does not fit. The way on is to end the record early.
    """


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a source stands: its last stored sequence, whether it has ended the record."""

    last_sequence: int
    sealed: bool
    events: int


def open_source(run_number: int, source_id: str) -> int:
    """Let a source write to a record; return the last of its sequences that is stored (0: none).

    When the source before it has not told its end in order, the record says so. Raises
    ``SourceMismatch`` when another source has followed this one, ``RecordSealed`` when the record
    has ended otherwise than by this source.
    """
    with transaction.atomic():
        head = locked(run_number)
        if _open(head, source_id):
            head.save()
        return head.last_sequence - head.source_base


def append(
    run_number: int,
    source_id: str,
    contents: Sequence[bytes],
    *,
    fence: Fence | None = None,
    opening: bool = False,
    beforehand: Callable[[], None] = lambda: None,
    run: Run | None = None,
) -> Appended:
    """Store the contents of a source's frames that are not stored yet; all or nothing.

    ``contents`` carry the source's numbers, in order. Numbers that are missing become a loss span.
    With ``recordSealed`` the record is sealed and the run settled. With ``opening`` the source is
    let write first, as :func:`open_source` does it. What ``beforehand`` writes is of the same
    transaction, before the head is locked. Raises what it raises, ``SourceMismatch``,
    ``RecordSealed`` and, after what could be stored was stored, ``SourceRefused``; with a ``fence``
    ``LeaseLost`` when that is not the lease on the run any more.

    ``run`` is the row as the caller knows it. It need not be up to date, as a one-shot run is
    settled by what never changes of it; others are read anew.
    """
    with transaction.atomic():
        beforehand()
        now: datetime | None = None
        has_partition = False
        if fence is None:
            head = locked(run_number)
        else:
            head, now, has_partition = locked_by_holder(run_number, fence)
        is_opened = opening and _open(head, source_id, has_partition=has_partition)
        if head.source_id != source_id:
            if head.sealed_at is not None:
                raise RecordSealed(f"the record of run {run_number} has ended")
            raise SourceMismatch(f"the record of run {run_number} is at {head.source_id!r}")
        if head.sealed_at is not None:
            return _stored_already(head, contents)
        batch, beside = _store(head, contents)
        if not batch.stored and is_opened:
            head.save()
        outcome = None
        if batch.sealed is not None:
            if run is None or run.mode != Run.Mode.ONE_SHOT:
                run = Run.objects.get(number=run_number)
            egress_endings.close(run, head)
            seal.seal(run, head, now)
            told = metas.read(batch.sealed.meta)
            if not settlement.is_told(run, told):
                tables.write(beside)  # the exit is looked for in it
                beside = []
            outcome = settlement.ended(run, told)
        if batch.stored:
            _save(head, beside, sealed=batch.sealed is not None, outcome=outcome)
        last = head.last_sequence - head.source_base
    if batch.refused:
        raise SourceRefused(f"after event {last} of the source: {batch.refused}")
    return Appended(last, batch.sealed is not None, batch.stored)


def close_early(
    run_number: int,
    *,
    reason: str,
    detail: str,
    begun: bool = False,
    status: Run.Status | None = None,
    error_code: str = "",
    error_message: str = "",
) -> bool:
    """End a record whose source cannot; False when it has ended already.

    Unless the source told its end in order, or none ever began, the record says that its end is
    missing and why. With ``begun`` one began of which nothing may be stored yet. The run gets
    ``status``; without one, what the recorded exit of its last leader says, and failed when there
    is none.
    """
    with transaction.atomic():
        head = locked(run_number)
        if head.sealed_at is not None:
            return False
        run = Run.objects.get(number=run_number)
        egress_endings.close(run, head)
        if begun or not head.source_ended:
            tables.add_losses(head, [_early(head, f"{reason}: {detail}")])
        exit_ = settlement.recorded_exit(run)
        end = settlement.ended(run, {"exit": exit_, "reason": reason})
        if status is not None or exit_ is None:
            end = settlement.Outcome(
                status or Run.Status.FAILED,
                end.exit_code,
                end.exit_signal,
                error_code or (end.error_code if status in (None, Run.Status.FAILED) else ""),
                error_message or (detail if status in (None, Run.Status.FAILED) else ""),
            )
        _end(head, reason=reason, exit_=exit_, detail=detail)
        end.settle(run_number)
        return True


def end_in_order(
    run_number: int,
    *,
    reason: str,
    exit: Mapping[str, Any] | None = None,
    status: Run.Status | None = None,
    error_code: str = "",
    error_message: str = "",
) -> bool:
    """End a record of which everything is known; False when it has ended already.

    ``exit`` is that of ``recordSealed``: ``{code, signal, reason}``. The run gets ``status``;
    without one, what the exit says.
    """
    with transaction.atomic():
        head = locked(run_number)
        if head.sealed_at is not None:
            return False
        run = Run.objects.get(number=run_number)
        egress_endings.close(run, head)
        end = settlement.outcome(run.mode, {"exit": exit, "reason": reason})
        if status is not None:
            failed = status == Run.Status.FAILED
            end = settlement.Outcome(
                status,
                end.exit_code,
                end.exit_signal,
                error_code or (end.error_code if failed else ""),
                error_message or (end.error_message if failed else ""),
            )
        _end(head, reason=reason, exit_=exit, detail=error_message)
        end.settle(run_number)
        return True


def append_own(head: RunHead, events: Sequence[Event]) -> None:
    """Store events of the control plane behind a locked head, whatever source is writing.

    They are numbered anew. The source goes on as if they were not there.
    """
    if not events:
        return
    ended = head.source_ended
    last = head.last_sequence - head.source_base
    _ensure_partition(head.run_number)
    contents = [
        frames.content_of(event._replace(sequence=last + place))
        for place, event in enumerate(events, 1)
    ]
    batch, beside = _store(head, contents, is_own=True)
    if batch.stored != len(events):
        raise DatabaseError(f"run {head.run_number} has no room: {batch.refused}")
    head.source_base += batch.stored
    head.source_ended = ended
    _save(head, beside, sealed=False)


def _ensure_partition(run_number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT run_event_ensure_partition(%s, %s)", [run_number, PARTITION_RUNS])


def _open(head: RunHead, source_id: str, *, has_partition: bool = False) -> bool:
    """Let a source write behind a locked head, which is to be saved; False: it may already.

    ``has_partition``: there is surely room for its events.
    """
    if head.source_id == source_id:
        return False
    if head.sealed_at is not None:
        raise RecordSealed(f"the record of run {head.run_number} has ended")
    if source_id in head.past_sources:
        raise SourceMismatch(f"another source has followed {source_id} in run {head.run_number}")
    if not has_partition:
        _ensure_partition(head.run_number)
    losses = [] if head.source_ended else [_early(head, "the next source began")]
    tables.add_losses(head, losses)
    _begin_source(head, source_id)
    head.source_ended = False
    return True


def _begin_source(head: RunHead, source_id: str) -> None:
    if head.source_id:
        head.past_sources = [*head.past_sources, head.source_id]
    head.source_id = source_id
    head.source_base = head.last_sequence
    head.process_base = head.process_count


def _early(head: RunHead, reason: str) -> Loss:
    """Return the span for the end of a source that never came: from here on, nobody knows what."""
    return Loss("early_close", "gap", from_sequence=head.last_sequence + 1, reason=reason)


def _stored_already(head: RunHead, contents: Sequence[bytes]) -> Appended:
    last = head.last_sequence - head.source_base
    for content in contents:
        try:
            sequence = frames.decode(content).sequence
        except frames.FrameError:
            sequence = last + 1
        if sequence > last:
            raise RecordSealed(f"the record of run {head.run_number} has ended")
    return Appended(last, True, 0)


def _store(
    head: RunHead, contents: Sequence[bytes], *, is_own: bool = False
) -> tuple[Batch, list[tables.Beside]]:
    """Store contents behind a locked head, with all that follows from them but the seal.

    The head is to be saved then, when anything was stored, with what is returned beside it.
    """
    batch = Batch(
        run_number=head.run_number,
        source_base=head.source_base,
        process_base=head.process_base,
        sequence=head.last_sequence,
        chain_head=bytes(head.chain_head),
        source_ended=head.source_ended,
        derived=Derived(head.process_base, head.stream_bytes, head.coverage),
        last_sequence=_last_sequence(head, is_own=is_own),
        is_own=is_own,
    )
    pieces = batch.rows(contents)
    first = next(pieces, None)
    if first is None:
        return batch, []
    head.stored_bytes += tables.copy_events(first, pieces)
    head.last_sequence = batch.sequence
    head.event_count += batch.stored
    head.chain_head = batch.chain_head
    head.source_ended = batch.source_ended
    head.coverage = batch.derived.coverage
    beside = tables.add_derived(head, batch.derived)
    transaction.on_commit(lambda: _count(batch))
    return batch, beside


def _last_sequence(head: RunHead, *, is_own: bool) -> int:
    if head.source_id == CONTROL_PLANE:
        return INT64_MAX
    return INT64_MAX - 1 if is_own else LAST_SEQUENCE


def _count(batch: Batch) -> None:
    RECORD_BATCHES.count()
    RECORD_EVENTS.count(batch.stored)
    RECORD_BYTES.count(batch.stored_bytes)


def _end(head: RunHead, *, reason: str, exit_: Mapping[str, Any] | None, detail: str) -> None:
    """Append the control plane's own ``recordSealed``, with the run's totals; seal the record."""
    places = ((key.split("/"), end) for key, end in head.stream_bytes.items())
    told = {
        "by": CONTROL_PLANE,
        "reason": reason,
        "exit": None if exit_ is None else dict(exit_),
        "events": head.event_count + 1,
        "processes": head.process_count,
        "streams": [
            {"process": int(process), "stream": STREAM_NAMES.get(int(stream), stream), "bytes": end}
            for (process, stream), end in places
        ],
    }
    if detail:
        told["detail"] = detail
    # A source of its own, so that nothing late from the last one can pass for this event. Its
    # totals are the run's.
    _begin_source(head, CONTROL_PLANE)
    head.process_base = 0
    meta = json.dumps(told, separators=(",", ":")).encode()
    now = time.time_ns() // 1000
    event = Event(
        1, now, 0, Kind.RECORD_SEALED, Method.INTERNAL, Confidence.OBSERVED, 0, 0, 0, meta, b""
    )
    _ensure_partition(head.run_number)
    _, beside = _store(head, [frames.content_of(event)])
    seal.seal(Run.objects.get(number=head.run_number), head)
    _save(head, beside, sealed=True)


def _save(
    head: RunHead,
    beside: Sequence[tables.Beside],
    *,
    sealed: bool,
    outcome: settlement.Outcome | None = None,
) -> None:
    """Save the head behind a batch, with its checkpoint, settle the run, and announce it."""
    told = {"runNumber": head.run_number, "lastSequence": head.last_sequence, "sealed": sealed}
    settling = None
    if outcome is not None:
        ended = {**outcome.to_members(), "outputBytes": _output_bytes(head)}
        settling = tables.Settling(
            outcome.settling(head.run_number), json.dumps({**told, "ended": ended})
        )
    tables.save_head(
        head,
        channel=CHANNEL,
        told=json.dumps(told),
        beside=[*beside, room.counting(head)] if sealed else beside,
        settling=settling,
    )


def _output_bytes(head: RunHead) -> int:
    """Return how much the programs of a run have written, what the record lacks of it included."""
    ends = ((key.split("/")[1], end) for key, end in head.stream_bytes.items())
    return sum(end for stream, end in ends if int(stream) in OUTPUTS)


def announce_end(run: Run) -> None:
    """Announce, as ends of records are, the end of a run that has no record."""
    announce(CHANNEL, json.dumps({"runNumber": run.number, "lastSequence": 0, "sealed": False}))
