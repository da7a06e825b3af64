"""Which runs a worker has to record, and the leases on them. Database time only."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import timedelta

from django.db import connection
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Coalesce, Now

from controlplane.database.columns import with_columns
from controlplane.work.leases import Fence
from runs.models import Run, RunHead, RunQuerySet
from workspaces.models import Attempt, RuntimeInstance
from workspaces.models.known_engines import here

OPEN = (Run.Status.QUEUED, Run.Status.RUNNING)

BUILD_RECORDED_AFTER = timedelta(seconds=20)
"""A build worker ends the record of a build that failed; after this time it is taken for dead."""


def mode_of(run_id: uuid.UUID) -> Run.Mode | None:
    """Return what kind of work a run is, which never changes; None when there is no such run."""
    mode = Run.objects.filter(pk=run_id).values_list("mode", flat=True).first()
    return None if mode is None else Run.Mode(mode)


def to_be_recorded() -> RunQuerySet:
    """Keep the open runs that a worker has to be at.

    A one-shot run from its creation, an interactive one once it runs, a boot run once there may be
    a container, and once there will be none any more.
    """
    container = RuntimeInstance.objects.filter(attempt_id=OuterRef("attempt_id"))
    over = Attempt.objects.filter(
        pk=OuterRef("attempt_id"),
        status__in=Attempt.TERMINAL,
        finished_at__lte=Now() - BUILD_RECORDED_AFTER,
    )
    return Run.objects.filter(
        Q(mode=Run.Mode.ONE_SHOT, command__isnull=False)
        | Q(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING)
        | Q(mode=Run.Mode.BOOT) & (Exists(container) | Exists(over)),
        recorded=True,
        status__in=OPEN,
    )


def of_engine(runs: RunQuerySet, name: str) -> RunQuerySet:
    """Keep the runs that a worker of the engine ``name`` may record; "": of any engine."""
    if not name:
        return runs
    elsewhere = RuntimeInstance.objects.filter(~here(name), attempt_id=OuterRef("attempt_id"))
    return runs.filter(~Exists(elsewhere))


def claim(run_id: uuid.UUID, *, worker_id: str, lease: timedelta, engine: str = "") -> Run | None:
    """Acquire one run for ``lease``; None when it is not claimable or another worker has it.

    ``engine`` is the one that the worker serves; without it it claims the runs of any.

    From then on the run is running: to be executed, if that has not happened, and recorded. Its
    attempt comes with it.
    """
    return _claim_command(run_id, worker_id=worker_id, lease=lease, engine=engine) or (
        of_engine(to_be_recorded(), engine)
        .exclude(mode=Run.Mode.ONE_SHOT)
        .select_related("attempt")
        .filter(pk=run_id)
        .free()
        .acquire(
            worker_id=worker_id,
            lease=lease,
            status=Run.Status.RUNNING,
            started_at=Coalesce("started_at", Now()),
            updated_at=Now(),
        )
    )


def _claim_command(
    run_id: uuid.UUID, *, worker_id: str, lease: timedelta, engine: str
) -> Run | None:
    """Acquire a one-shot run, which somebody waits for, in one statement."""
    given = {
        "run": run_id,
        "worker": worker_id,
        "lease": lease,
        "open": list(OPEN),
        "engine": engine,
    }
    claimed = next(iter(Run.objects.raw(_CLAIM_COMMAND, given)), None)
    if claimed is not None:
        known = (claimed.attempt_id, vars(claimed).pop("boot_run_id"))
        claimed.attempt = Attempt.from_db(connection.alias, ["id", "run_id"], known)
    return claimed


# As `to_be_recorded`, `of_engine` and `free` have it.
_CLAIM_COMMAND = with_columns(
    """
    WITH free AS (
        SELECT id FROM runs_run
        WHERE id = %(run)s AND mode = 'one-shot' AND command IS NOT NULL AND recorded
            AND status = ANY(%(open)s)
            AND (lease_expires_at IS NULL OR lease_expires_at <= statement_timestamp())
            AND (%(engine)s = '' OR NOT EXISTS (
                SELECT 1 FROM workspaces_runtimeinstance AS runtime
                WHERE runtime.attempt_id = runs_run.attempt_id
                    AND runtime.engine_name NOT IN ('', %(engine)s)))
        FOR UPDATE SKIP LOCKED
    )
    UPDATE runs_run AS run SET
        worker_id = %(worker)s,
        claimed_at = statement_timestamp(),
        lease_expires_at = statement_timestamp() + %(lease)s,
        claim_count = claim_count + 1,
        status = 'running',
        started_at = coalesce(started_at, statement_timestamp()),
        updated_at = statement_timestamp()
    FROM free WHERE run.id = free.id
    RETURNING run.*,
        (SELECT run_id FROM workspaces_attempt AS attempt WHERE attempt.id = run.attempt_id)
            AS boot_run_id
""",
    run=Run,
)


def cancel_requests(fences: Collection[Fence]) -> dict[uuid.UUID, bool]:
    """Return the runs whose lease is still held, and whether their cancellation was requested."""
    if not fences:
        return {}
    held = Run.objects.held_by_any(fences).filter(lease_expires_at__isnull=False)
    return {pk: at is not None for pk, at in held.values_list("pk", "cancel_requested_at")}


def lock(fence: Fence, run_number: int) -> None:
    """Lock record and run for writes in the present transaction, in ``runs.record.store``'s order.

    Raises ``LeaseLost`` when the lease is not the present one any more.
    """
    list(RunHead.objects.select_for_update().filter(run_number=run_number).values_list("pk"))
    Run.objects.lock(fence)


def expired() -> RunQuerySet:
    """Keep runs whose lease ran out, longest ago first."""
    return to_be_recorded().expired()


def unclaimed(*, overdue: timedelta) -> RunQuerySet:
    """Keep runs that nobody claimed, oldest first; one-shot ones once their message is overdue."""
    return (
        to_be_recorded()
        .filter(lease_expires_at__isnull=True)
        .exclude(mode=Run.Mode.ONE_SHOT, queued_at__gt=Now() - overdue)
        .order_by("id")
    )
