"""Locking the head of a record, with what whoever writes behind it asks at the same time."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from controlplane.database.columns import with_columns
from controlplane.work.leases import Fence, lease_lost
from runs.models import PARTITION_RUNS, RunHead


def locked(run_number: int) -> RunHead:
    """Return the head of a record, locked in the present transaction."""
    return RunHead.objects.select_for_update().get(pk=run_number)


def locked_by_holder(run_number: int, fence: Fence) -> tuple[RunHead, datetime, bool]:
    """Return the locked head, when the transaction began, and whether there is a partition.

    Raises ``LeaseLost`` unless the lease is the run's present one.
    """
    part = f"run_event_p{run_number // PARTITION_RUNS}"
    given = {"number": run_number, "part": part, **asdict(fence)}
    head = next(iter(RunHead.objects.raw(_LOCK_BY_HOLDER, given)), None)
    if head is None:
        raise RunHead.DoesNotExist(f"run {run_number} has no record")
    told = ("is_held", "transaction_began", "has_partition")
    is_held, now, has_partition = (vars(head).pop(name) for name in told)
    if not is_held:
        raise lease_lost(fence)
    return head, now, has_partition


# The lease as `RunQuerySet.writable` has it.
_LOCK_BY_HOLDER = with_columns(
    """
    SELECT head.*, EXISTS (
        SELECT FROM runs_run WHERE id = %(row_id)s AND worker_id = %(worker_id)s
            AND claim_count = %(count)s AND lease_expires_at IS NOT NULL
    ) AS is_held, now() AS transaction_began, run_event_has_partition(%(part)s) AS has_partition
    FROM run_head AS head WHERE run_number = %(number)s FOR UPDATE OF head
""",
    head=RunHead,
)
