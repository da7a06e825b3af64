"""Who is at which run: claims, their leases, and what is asked of both. Database time only.

A run is claimed by one worker for a short time, and the claim is renewed for as long as the worker
lives. ``claim_count`` rises with every claim, so a worker that slept through the loss of its lease
matches no row any more: each write after the claim asks for all three of run, worker and count.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Coalesce, Now

from runs.models import Run, RunHead, RunQuerySet
from workspaces.models import Attempt, RuntimeInstance

OPEN = (Run.Status.QUEUED, Run.Status.RUNNING)

BUILD_RECORDED_AFTER = timedelta(seconds=20)
"""A build worker ends the record of a build that failed; after this time it is taken for dead."""


class LeaseLostError(Exception):
    """The run is no longer this worker's: another one claimed it, or it has ended."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The claim of one worker on one run."""

    run_id: uuid.UUID
    worker_id: str
    claim_count: int


def fence_of(run: Run) -> Fence:
    """Return the claim that the row shows."""
    return Fence(run.pk, run.worker_id, run.claim_count)


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


def claim(run_id: uuid.UUID, *, worker_id: str, lease: timedelta) -> Run | None:
    """Claim one run for ``lease``; None when it is not claimable or another worker is at it.

    From then on the run is running: to be executed, if that has not happened, and recorded.
    """
    with transaction.atomic():
        run = (
            to_be_recorded()
            .filter(Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=Now()), pk=run_id)
            .select_for_update(skip_locked=True, of=("self",))
            .first()
        )
        if run is None:
            return None
        Run.objects.filter(pk=run.pk).update(
            status=Run.Status.RUNNING,
            worker_id=worker_id,
            claim_count=F("claim_count") + 1,
            claimed_at=Now(),
            lease_expires_at=Now() + lease,
            started_at=Coalesce("started_at", Now()),
            updated_at=Now(),
        )
        run.refresh_from_db()
    return run


def _held_by(worker_id: str, fences: Iterable[Fence]) -> RunQuerySet:
    held = Q(pk__in=[])
    for fence in fences:
        held |= Q(pk=fence.run_id, claim_count=fence.claim_count)
    return Run.objects.filter(held, worker_id=worker_id, lease_expires_at__isnull=False)


def renew(worker_id: str, fences: Collection[Fence], *, lease: timedelta) -> int:
    """Prolong all leases of a worker in one statement; return how many. Lost ones stay so.

    Passes over rows that are being written: the next renewal is soon.
    """
    if not fences:
        return 0
    with transaction.atomic():
        rows = _held_by(worker_id, fences).select_for_update(skip_locked=True)
        held = list(rows.values_list("pk", flat=True))
        if held:
            Run.objects.filter(pk__in=held).update(lease_expires_at=Now() + lease)
    return len(held)


def standing(worker_id: str, fences: Collection[Fence]) -> dict[uuid.UUID, bool]:
    """Return the runs that are still the worker's, and whether their end is asked for."""
    if not fences:
        return {}
    rows = _held_by(worker_id, fences).values_list("pk", "cancel_requested_at")
    return {run_id: asked is not None for run_id, asked in rows}


def release(worker_id: str, fences: Collection[Fence]) -> int:
    """End the leases of a worker, so that another one takes over at once; return how many."""
    if not fences:
        return 0
    return _held_by(worker_id, fences).update(lease_expires_at=Now())


def release_strays(worker_id: str, held: Collection[uuid.UUID], *, older_than: timedelta) -> int:
    """End the leases of a worker on runs other than those it holds; return how many.

    A claim may be committed although its answer was lost with the connection. Claims younger than
    ``older_than`` are left: ``held`` may have been read before them.
    """
    return (
        Run.objects.filter(worker_id=worker_id, lease_expires_at__gt=Now())
        .filter(claimed_at__lt=Now() - older_than)
        .exclude(pk__in=held)
        .update(lease_expires_at=Now())
    )


def require(fence: Fence) -> None:
    """Raise ``LeaseLostError`` when the claim is not the present one any more."""
    if not _held_by(fence.worker_id, [fence]).exists():
        raise _lost(fence)


def lock(fence: Fence, run_number: int) -> None:
    """Lock record and run for writes in the present transaction, in the order of ``runs.store``.

    Raises ``LeaseLostError`` when the claim is not the present one any more.
    """
    list(RunHead.objects.select_for_update().filter(run_number=run_number).values_list("pk"))
    held = _held_by(fence.worker_id, [fence])
    if not list(held.select_for_update().values_list("pk")):
        raise _lost(fence)


def _lost(fence: Fence) -> LeaseLostError:
    return LeaseLostError(f"run {fence.run_id} is not held by {fence.worker_id} any more")


def expired() -> RunQuerySet:
    """Keep runs whose lease ran out, longest ago first."""
    return to_be_recorded().filter(lease_expires_at__lte=Now()).order_by("lease_expires_at")


def unattended(*, overdue: timedelta) -> RunQuerySet:
    """Keep runs that nobody claimed, oldest first; one-shot ones once their message is overdue."""
    return (
        to_be_recorded()
        .filter(lease_expires_at__isnull=True)
        .exclude(mode=Run.Mode.ONE_SHOT, queued_at__gt=Now() - overdue)
        .order_by("id")
    )
