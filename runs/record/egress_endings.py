"""A boot run's record ends behind the last decision of the egress proxy.

A proxy decides until it is told that a record ends; then nothing passes any more, it stores what it
has, and says so. Whoever ends a record waits for that (:func:`settle`), and not for long: a proxy
that does not answer in time may have decided more, and the record says that (:func:`close`).
"""

from __future__ import annotations

import time
from datetime import timedelta

from django.db import connection
from django.db.models import Q
from django.db.models.functions import Now

from runs.models import Run, RunHead
from runs.record.ingest import tables
from runs.record.ingest.derived import Loss
from workspaces.models import EgressNetwork

SETTLE_SECONDS = 3.0
LOOK_SECONDS = 0.05
NOT_SETTLED = "egress: the proxy did not answer, so decisions may be missing"


def settle(run: Run) -> None:
    """Let nothing more pass in the networks of a boot run's attempt, and wait for what did.

    At most ``SETTLE_SECONDS``. Where nothing can be waited for, inside of a transaction, it only
    asks. To be called before the record is ended; of other runs there is nothing to wait for.
    """
    if run.mode != Run.Mode.BOOT or run.attempt_id is None:
        return
    EgressNetwork.objects.end(run.attempt_id)
    deadline = time.monotonic() + SETTLE_SECONDS
    while not connection.in_atomic_block and time.monotonic() < deadline:
        if is_settled(run):
            return
        time.sleep(LOOK_SECONDS)


def is_settled(run: Run) -> bool:
    """Whether nothing is waited for: all is stored, or its proxy had the time to store it."""
    if run.mode != Run.Mode.BOOT or run.attempt_id is None:
        return True
    unsettled = EgressNetwork.objects.unsettled(run.attempt_id)
    seconds = timedelta(seconds=SETTLE_SECONDS)
    # What is to begin only later was written before the clock was put back.
    had_time = Q(ending_at__lte=Now() - seconds) | Q(ending_at__gt=Now() + seconds)
    return not unsettled.exclude(had_time, ending_at__isnull=False).exists()


def close(run: Run, head: RunHead) -> None:
    """Let nothing pass behind the end of a record, which is locked, and say what it may lack.

    To be called in the transaction that ends it.
    """
    if run.mode != Run.Mode.BOOT or run.attempt_id is None:
        return
    EgressNetwork.objects.end(run.attempt_id)
    if EgressNetwork.objects.unsettled(run.attempt_id).exists():
        loss = Loss("dropped_event", "gap", head.last_sequence, reason=NOT_SETTLED)
        tables.add_losses(head, [loss])
