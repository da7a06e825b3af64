"""Checking a stored record against itself: every event, checkpoint, loss span, seal, signature."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connection, transaction

from runs.models import Run, RunCheckpoint, RunHead, RunLoss
from runs.record import checking, export_format, seal
from runs.record.checking import Checked, Fault, Walk
from runs.record.export_format import EVENT_COLUMNS, EventRow
from runs.record.verify_derived import Told

Verdict = Checked
"""``ok``, ``first_bad`` (the first event that does not fit, where there is one), ``message``."""

_FETCHED = 200
_LAST = 2**63 - 1


def verify_run(run: Run, *, public_key: bytes | None = None) -> Verdict:
    """Compute the record of a run anew from its rows and say whether it is what was written.

    ``public_key`` has to have signed it; without one, this installation's key does when it has one.
    Never raises for what the rows hold. Others may append meanwhile: all is read as it was at one
    moment, unless the caller has a transaction of its own.
    """
    is_outermost = not connection.in_atomic_block
    try:
        with transaction.atomic():
            if is_outermost:
                _see_one_moment()
            return _verified(run, public_key or seal.public_key())
    except Fault as exc:
        return Verdict(False, exc.sequence, str(exc))


def _see_one_moment() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def _verified(run: Run, public_key: bytes | None) -> Verdict:
    head = RunHead.objects.filter(pk=run.number).first()
    if head is None:
        raise Fault(None, "the run has no record")
    if head.removed_at is not None:
        raise Fault(None, f"the record was removed on {head.removed_at:%Y-%m-%d}")
    walk = Walk(run.pk)
    told = Told()
    checkpoints = _checkpoints(run.number, head.last_sequence)
    checkpoint = next(checkpoints, None)
    for row in _events(run.number, _LAST if head.sealed_at else head.last_sequence):
        walk.step(row)
        told.take(row)
        while checkpoint is not None and checkpoint[0] <= walk.sequence:
            if checkpoint != (walk.sequence, walk.head):
                raise Fault(walk.sequence, "the checkpoint there is not where the chain stands")
            checkpoint = next(checkpoints, None)
    if checkpoint is not None:
        raise Fault(walk.sequence + 1, f"missing: there is a checkpoint at {checkpoint[0]}")
    losses = list(
        RunLoss.objects.filter(run_number=run.number, position__lte=head.loss_count).order_by(
            "position"
        )
    )
    if [loss.position for loss in losses] != list(range(1, head.loss_count + 1)):
        raise Fault(None, "loss spans are missing")
    _check_head(head, walk)
    told.compare(run.number, parents=not head.past_sources)
    walk.finish(
        [
            (loss.from_sequence, loss.to_sequence)
            for loss in losses
            if loss.kind == RunLoss.Kind.SEQUENCE_GAP
            and loss.from_sequence is not None
            and loss.to_sequence is not None
        ]
    )
    if head.seal is None:
        _check_no_more(run.number)
        return Verdict(
            True,
            None,
            f"{walk.events} events are consistent; the record has not ended, so nothing is signed",
        )
    if RunLoss.objects.filter(run_number=run.number).count() != len(losses):
        raise Fault(None, "there are more loss spans than the record has")
    again = export_format.seal_of(
        export_format.header_line(run),
        map(export_format.loss_line, losses),
        head,
        head.sealed_at or run.created_at,
        run.pk,
    )
    checked = checking.check_seal(
        walk,
        header=export_format.header_line(run),
        losses=map(export_format.loss_line, losses),
        seal=bytes(head.seal),
        signature=_bytes(head.signature),
        embedded_key=_bytes(head.public_key),
        key_id=head.key_id,
        public_key=public_key,
    )
    if again != bytes(head.seal):
        raise Fault(None, "the head is not as it was sealed")
    return checked


def _check_head(head: RunHead, walk: Walk) -> None:
    if head.last_sequence > walk.sequence:
        raise Fault(walk.sequence + 1, f"missing: the record goes to {head.last_sequence}")
    if head.last_sequence < walk.sequence:
        raise Fault(head.last_sequence + 1, "is not the record's: it ended before")
    if head.event_count != walk.events or bytes(head.chain_head) != walk.head:
        raise Fault(walk.sequence, "the chain does not end where the head says")
    if (head.seal is None) != (head.sealed_at is None) or walk.ended != (head.seal is not None):
        raise Fault(
            walk.sequence, "the record has ended without a seal, or has a seal without having ended"
        )


def _check_no_more(run_number: int) -> None:
    """Raise ``Fault`` when there are events behind the head, as both are at one moment."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT min(sequence) FROM run_event WHERE run_number = %s AND sequence > "
            "(SELECT last_sequence FROM run_head WHERE run_number = %s)",
            [run_number, run_number],
        )
        (stray,) = cursor.fetchone()
    if stray is not None:
        raise Fault(stray, "is not the record's: nothing was appended there")


def _events(run_number: int, last: int) -> Iterator[EventRow]:
    """Yield the rows up to a sequence, for constant memory through a cursor of the server.

    One plan for all: page by page, the planner could choose to sort the whole run for each page of
    a partition that it has no statistics of yet.
    """
    with connection.chunked_cursor() as cursor:
        cursor.execute(
            f"SELECT {EVENT_COLUMNS} FROM run_event "  # noqa: S608
            "WHERE run_number = %s AND sequence <= %s ORDER BY sequence",
            [run_number, last],
        )
        while fetched := cursor.fetchmany(_FETCHED):
            for row in fetched:
                yield EventRow(*row)


def _checkpoints(run_number: int, last: int) -> Iterator[tuple[int, bytes]]:
    found = RunCheckpoint.objects.filter(run_number=run_number, sequence__lte=last)
    for sequence, head in found.order_by("sequence").values_list("sequence", "chain_head"):
        yield sequence, bytes(head)


def _bytes(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
