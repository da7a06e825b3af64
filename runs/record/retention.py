"""Removing records of runs that have ended. The only code that takes rows out of the log.

The row of the run stays, and the head of its record with counters, seal and signature; the head
says when the record was removed. Everything that the record told goes: events, processes, changes,
loss spans, checkpoints.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django.db import OperationalError, connection, transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from runs.models import (
    PARTITION_RUNS,
    Run,
    RunChange,
    RunCheckpoint,
    RunHead,
    RunLoss,
    RunProcess,
)

BATCH = 100
"""Runs whose records are removed in one transaction, so that none holds its locks for long."""

LOCK_TIMEOUT = "2s"
"""Dropping a partition stops all writers for a moment; when it cannot at once, it does not."""


@dataclass
class Removed:
    """What was removed, or would be: counted from the log itself, ``bytes`` are meta and body."""

    runs: int = 0
    events: int = 0
    bytes: int = 0
    partitions: list[str] = field(default_factory=list)
    kept_partitions: list[str] = field(default_factory=list)
    """Those that were busy: their records were removed row by row."""


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

    A partition of which no record would be left is dropped whole.
    """
    removed = Removed()
    by_partition: dict[int, list[int]] = {}
    for number in numbers:
        by_partition.setdefault(number // PARTITION_RUNS, []).append(number)
    for part, members in sorted(by_partition.items()):
        if _goes_whole(part, members):
            if dry_run:
                _count(removed, members)
                removed.partitions.append(_name(part))
                continue
            if _drop(part, members, removed):
                continue
        for batch in _batches(members):
            if dry_run:
                _count(removed, batch)
            else:
                _delete(batch, removed)
    return removed


def _name(part: int) -> str:
    return f"run_event_p{part}"


def _goes_whole(part: int, members: Sequence[int]) -> bool:
    """Return whether a partition will hold nothing when these records are gone, now and later."""
    start, end = part * PARTITION_RUNS, (part + 1) * PARTITION_RUNS
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM run_number_seq")
        (last,) = cursor.fetchone()
        cursor.execute("SELECT to_regclass(%s)", [_name(part)])
        (exists,) = cursor.fetchone()
    if last < end - 1 or exists is None:
        return False
    others = RunHead.objects.filter(run_number__gte=start, run_number__lt=end)
    return not others.exclude(run_number__in=members).filter(removed_at__isnull=True).exists()


def _drop(part: int, members: Sequence[int], removed: Removed) -> bool:
    """Drop a partition; False, and nothing done, when it is busy or not to go whole after all."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            locked = _lock(members)
            # The whole before its part, as readers and writers lock them.
            cursor.execute("LOCK TABLE ONLY run_event IN ACCESS EXCLUSIVE MODE")
            cursor.execute(f"LOCK TABLE {_name(part)} IN ACCESS EXCLUSIVE MODE")
            # Looked at again now that nobody else can write there.
            if len(locked) != len(members) or not _goes_whole(part, members):
                return False
            sizes = _sizes(members)
            cursor.execute(f"DROP TABLE {_name(part)}")
            _mark(members, sizes, removed)
    except OperationalError:
        removed.kept_partitions.append(_name(part))
        return False
    removed.partitions.append(_name(part))
    return True


def _delete(members: Sequence[int], removed: Removed) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        locked = _lock(members)
        sizes = _sizes(locked)
        cursor.execute("SET LOCAL svc.retention = 'on'")
        cursor.execute("DELETE FROM run_event WHERE run_number = ANY(%s)", [locked])
        # The permission ends with the statement that needs it, not with a transaction around.
        cursor.execute("SET LOCAL svc.retention = 'off'")
        _mark(locked, sizes, removed)


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


def _mark(members: Sequence[int], sizes: dict[int, tuple[int, int]], removed: Removed) -> None:
    for model in (RunProcess, RunLoss, RunChange, RunCheckpoint):
        model.objects.filter(run_number__in=members).delete()
    heads = list(RunHead.objects.filter(run_number__in=members))
    for head in heads:
        _, head.removed_bytes = sizes.get(head.run_number, (0, 0))
        head.removed_at = Now()
    RunHead.objects.bulk_update(heads, ["removed_at", "removed_bytes"])
    _add(removed, members, sizes)


def _count(removed: Removed, members: Sequence[int]) -> None:
    _add(removed, members, _sizes(members))


def _add(removed: Removed, members: Sequence[int], sizes: dict[int, tuple[int, int]]) -> None:
    removed.runs += len(members)
    removed.events += sum(events for events, _ in sizes.values())
    removed.bytes += sum(size for _, size in sizes.values())


def _batches(members: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(members), BATCH):
        yield members[start : start + BATCH]
