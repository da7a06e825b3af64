"""Making runs, and what clients may do to them: ask for the end, and report what is not recorded.

How a recorded run ended is decided by its record alone (``runs.store``); a client can only ask for
its end. A run that is not recorded is what its client says it is.
"""

from __future__ import annotations

import hashlib

from django.db import connection

from runs.models import PARTITION_RUNS, Run, RunHead
from workspaces.models import Attempt


def create_boot_run(attempt: Attempt) -> Run:
    """Create the boot run of ``attempt``, queued, with its id ``attempt.run_id``.

    To be called in the transaction that creates the attempt.
    """
    run = Run.objects.create(
        id=attempt.run_id,
        workspace_id=attempt.workspace_id,
        attempt=attempt,
        owner_user_id=attempt.sandbox.owner_user_id,
        harness_id=attempt.spec["harness"]["id"],
        mode=Run.Mode.BOOT,
        recorded=True,
    )
    _ensure_head(run)
    return run


def _ensure_head(run: Run) -> None:
    start = hashlib.sha256(b"svc-run-record-v1\0" + run.pk.bytes).digest()
    with connection.cursor() as cursor:
        cursor.execute("SELECT run_event_ensure_partition(%s, %s)", [run.number, PARTITION_RUNS])
    RunHead.objects.get_or_create(run_number=run.number, defaults={"chain_head": start})
