"""Removing records of runs that have ended. The only code that takes rows out of the log.

The row of the run stays, and the head of its record with counters, seal and signature; the head
says when the record was removed. Everything that the record told goes: events, processes, changes,
loss spans, checkpoints.

Of a partition that goes whole, the heads are marked first, in small transactions; from then on
nobody reads its events, and it is taken out (``runs.record.partitions``). A command that dies in
between leaves marked records whose events are still there, or a partition that is detached or half
so: the next one begins with these.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from controlplane.database.locks import try_advisory_lock
from runs.models import (
    PARTITION_RUNS,
    Run,
    RunChange,
    RunCheckpoint,
    RunHead,
    RunLoss,
    RunProcess,
)
from runs.record import partitions, room
from runs.record.partitions import State, name_of

BATCH = 100
"""Runs whose records are removed in one transaction, so that none holds its locks for long."""

_LOCK = "prune-records"


class PruneUnderWay(Exception):
    """Another process is removing records."""


@dataclass
class Removed:
    """What was removed, or would be: counted from the log itself, ``bytes`` are meta and body."""

    runs: int = 0
    events: int = 0
    bytes: int = 0
    partitions: list[str] = field(default_factory=list)
    kept_partitions: list[str] = field(default_factory=list)
    """Those that were busy: their records were removed row by row."""
    left_partitions: list[str] = field(default_factory=list)
    """Those that are no longer read, and still there because somebody was reading them."""


def prunable(
    *, older_than: datetime.timedelta | None = None, run_id: uuid.UUID | None = None
) -> list[int]:
    """Return the numbers of the runs whose records may be removed now, in order.

    Those are final, their record has ended and is still there. Anything else is left alone, even
    when it is asked for by its id.
    """
    heads = RunHead.objects.filter(
        run_number=OuterRef("number"), sealed_at__isnull=False, removed_at__isnull=True
    )
    runs = Run.objects.filter(Exists(heads), status__in=Run.TERMINAL)
    if older_than is not None:
        runs = runs.filter(finished_at__lt=Now() - older_than)
    if run_id is not None:
        runs = runs.filter(pk=run_id)
    return list(runs.order_by("number").values_list("number", flat=True))


def prune(numbers: Sequence[int], *, dry_run: bool = False) -> Removed:
    """Remove the records of runs that :func:`prunable` named; return what was removed.

    A partition of which no record would be left is dropped whole, and so is what an earlier call
    did not get done. To be called outside of transactions; raises ``PruneUnderWay``.
    """
    by_partition: dict[int, list[int]] = {}
    for number in numbers:
        by_partition.setdefault(number // PARTITION_RUNS, []).append(number)
    if dry_run:
        return _would_remove(by_partition)
    removed = Removed()
    with try_advisory_lock(_LOCK) as alone:
        if not alone:
            raise PruneUnderWay("another process is removing records")
        for part, state in partitions.partitions().items():
            _take_up(part, state, removed)
        for part, members in sorted(by_partition.items()):
            _prune(part, members, removed)
    return removed


def _would_remove(by_partition: dict[int, list[int]]) -> Removed:
    removed = Removed()
    for part, members in sorted(by_partition.items()):
        if _goes_whole(part, members):
            removed.partitions.append(name_of(part))
        for batch in _batches(members):
            _add(removed, batch, _sizes(batch))
    return removed


def _take_up(part: int, state: State, removed: Removed) -> None:
    """Finish what an earlier call has begun with a partition."""
    if state is not State.ATTACHED or _goes_whole(part):
        _drop(part, state, removed)
    if partitions.partitions().get(part) is State.ATTACHED:
        _delete_marked(part)


def _prune(part: int, members: Sequence[int], removed: Removed) -> None:
    """Remove records of one partition."""
    whole = _goes_whole(part, members) and partitions.wait_for_new_runs()
    # Looked at again, now that no run can get a number of this partition any more.
    whole = whole and _goes_whole(part, members)
    for batch in _batches(members):
        _remove(batch, removed, with_events=not whole)
    if whole and not (_goes_whole(part) and _drop(part, State.ATTACHED, removed)):
        _delete_marked(part)


def _goes_whole(part: int, members: Sequence[int] = ()) -> bool:
    """Return whether a partition holds only records that are removed, or these, now and later."""
    if not partitions.is_past(part):
        return False
    if partitions.partitions().get(part) is not State.ATTACHED:
        return False
    heads = _heads(part)
    others = heads.exclude(run_number__in=members).filter(removed_at__isnull=True)
    return heads.exists() and not others.exists()


def _drop(part: int, state: State, removed: Removed) -> bool:
    """Take a partition out; False when it is still attached, because it is busy."""
    if partitions.remove(part, state):
        removed.partitions.append(name_of(part))
        return True
    if partitions.partitions().get(part) is State.ATTACHED:
        removed.kept_partitions.append(name_of(part))
        return False
    removed.left_partitions.append(name_of(part))
    return True


def _remove(members: Sequence[int], removed: Removed, *, with_events: bool) -> None:
    """Mark the heads of records as removed, with all but the events; with these if wanted."""
    with transaction.atomic(durable=True):
        locked = _lock(members)
        sizes = _sizes(locked)
        if with_events:
            _delete_events(locked)
        for model in (RunProcess, RunLoss, RunChange, RunCheckpoint):
            model.objects.filter(run_number__in=locked).delete()
        room.give_back(locked)
        heads = list(RunHead.objects.filter(run_number__in=locked))
        for head in heads:
            _, head.removed_bytes = sizes.get(head.run_number, (0, 0))
            head.removed_at = Now()
        RunHead.objects.bulk_update(heads, ["removed_at", "removed_bytes"])
    _add(removed, locked, sizes)


def _delete_marked(part: int) -> None:
    """Delete the events of records that are marked as removed, where there still are some."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT run_number FROM run_head AS head WHERE removed_at IS NOT NULL"  # noqa: S608
            " AND run_number >= %s AND run_number < %s AND EXISTS"
            f" (SELECT FROM {name_of(part)} AS event WHERE event.run_number = head.run_number)",
            _numbers(part),
        )
        marked = [number for (number,) in cursor.fetchall()]
    for batch in _batches(marked):
        with transaction.atomic(durable=True):
            _delete_events(batch)


def _delete_events(members: Sequence[int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL svc.retention = 'on'")
        cursor.execute("DELETE FROM run_event WHERE run_number = ANY(%s)", [list(members)])
        # The permission ends with the statement that needs it.
        cursor.execute("SET LOCAL svc.retention = 'off'")


def _numbers(part: int) -> tuple[int, int]:
    return part * PARTITION_RUNS, (part + 1) * PARTITION_RUNS


def _heads(part: int) -> QuerySet[RunHead]:
    start, end = _numbers(part)
    return RunHead.objects.filter(run_number__gte=start, run_number__lt=end)


def _lock(members: Sequence[int]) -> list[int]:
    """Lock the heads of these records; return those that are still to be removed."""
    heads = RunHead.objects.filter(
        run_number__in=members, sealed_at__isnull=False, removed_at__isnull=True
    )
    return list(
        heads.order_by("run_number").select_for_update().values_list("run_number", flat=True)
    )


def _sizes(members: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return events and bytes of each record, from the log."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT run_number, count(*), sum(octet_length(meta)::bigint + length)::bigint "
            "FROM run_event WHERE run_number = ANY(%s) GROUP BY run_number",
            [list(members)],
        )
        return {number: (events, size) for number, events, size in cursor.fetchall()}


def _add(removed: Removed, members: Sequence[int], sizes: dict[int, tuple[int, int]]) -> None:
    removed.runs += len(members)
    removed.events += sum(events for events, _ in sizes.values())
    removed.bytes += sum(size for _, size in sizes.values())


def _batches(members: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(members), BATCH):
        yield members[start : start + BATCH]
