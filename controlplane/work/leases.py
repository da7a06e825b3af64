"""Rows that one worker at a time works on: acquire, renew, release, expire. Database time only.

A worker acquires the lease of a row and renews it while it works. Each acquisition raises a
counter, and every write that follows asks for the row, the worker and that count (the
:class:`Fence`): a worker that slept through the expiry of its lease matches no row any more.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self, TypeVar

from django.db import models, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Now

from controlplane.work.acquisition import acquire_first
from controlplane.work.models import Heartbeat


class LeaseLost(Exception):
    """The row is not this worker's any more: another one acquired it, or it is final."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The lease of one worker on one row; ``count`` rises with every acquisition."""

    row_id: uuid.UUID
    worker_id: str
    count: int


def lease_lost(fence: Fence) -> LeaseLost:
    """Return the error for a lease that is not the present one any more."""
    return LeaseLost(f"{fence.row_id} is not held by {fence.worker_id} any more")


class LeasedRow(models.Model):
    """A row that workers lease. ``FENCE`` names the field that counts the acquisitions."""

    FENCE: ClassVar[str] = "claim_count"

    worker_id = models.CharField(max_length=255, blank=True)
    claimed_at = models.DateTimeField(null=True)
    lease_expires_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True

    @property
    def fence(self) -> Fence:
        """The lease that this row shows."""
        return Fence(self.pk, self.worker_id, getattr(self, self.FENCE))


Row = TypeVar("Row", bound=LeasedRow)


class LeasedQuerySet(models.QuerySet[Row]):
    """The leases of one table."""

    def expired(self) -> Self:
        """Keep the rows whose lease ran out, longest ago first."""
        return self.filter(lease_expires_at__lte=Now()).order_by("lease_expires_at")

    def free(self, *, alive: models.QuerySet[Heartbeat] | None = None) -> Self:
        """Keep the rows that nobody holds, or a worker whose lease ran out.

        With ``alive``, also those held by a worker that is not among these.
        """
        free = Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=Now())
        if alive is not None:
            free |= Q(~Exists(alive.filter(worker_id=OuterRef("worker_id"))))
        return self.filter(free)

    def acquire(self, *, worker_id: str, lease: timedelta, **values: Any) -> Row | None:
        """Acquire the lease of the first of these rows that nobody else is just acquiring.

        ``values`` are written with it. Returns the row as it is then; None when there is none.
        """
        written = {
            "worker_id": worker_id,
            "claimed_at": Now(),
            "lease_expires_at": Now() + lease,
            self.model.FENCE: F(self.model.FENCE) + 1,
            **values,
        }
        return acquire_first(self, written)

    def held_by(self, fence: Fence) -> Self:
        """Keep the row while ``fence`` is its present lease."""
        return self.held_by_any([fence])

    def held_by_any(self, fences: Iterable[Fence]) -> Self:
        """Keep the rows of which one of ``fences`` is the present lease."""
        held = Q(pk__in=[])
        for fence in fences:
            held |= Q(pk=fence.row_id, worker_id=fence.worker_id, **{self.model.FENCE: fence.count})
        return self.filter(held)

    def writable(self, fence: Fence) -> Self:
        """Keep the row while its holder may write to it. Tables may ask for more."""
        return self.held_by(fence)

    def require(self, fence: Fence) -> None:
        """Raise :class:`LeaseLost` unless the holder may still write."""
        if not self.writable(fence).exists():
            raise lease_lost(fence)

    def lock(self, fence: Fence) -> None:
        """Lock the row for writes in the present transaction; raise :class:`LeaseLost` if lost."""
        if not list(self.writable(fence).select_for_update(of=("self",)).values_list("pk")):
            raise lease_lost(fence)

    def lock_held(self, fence: Fence) -> None:
        """Lock the row while its lease is nobody else's, also one that takes no writes any more.

        For what is told of work that was stopped. Raises :class:`LeaseLost`.
        """
        if not list(self.held_by(fence).select_for_update(of=("self",)).values_list("pk")):
            raise lease_lost(fence)

    def write(self, fence: Fence, **values: Any) -> None:
        """Write to the row and so lock it; raise :class:`LeaseLost` when the lease is lost."""
        if not self.writable(fence).update(**values):
            raise lease_lost(fence)

    def renew(self, fence: Fence, *, lease: timedelta) -> bool:
        """Renew a lease; False when it is lost, and the work has to stop."""
        held = self.writable(fence).filter(lease_expires_at__isnull=False)
        return bool(held.update(lease_expires_at=Now() + lease))

    def renew_all(self, fences: Collection[Fence], *, lease: timedelta) -> int:
        """Renew many leases in one statement; return how many. Lost ones stay lost.

        Skips rows that are being written: the next renewal is soon.
        """
        if not fences:
            return 0
        with transaction.atomic():
            held = self.held_by_any(fences).filter(lease_expires_at__isnull=False)
            rows = list(held.select_for_update(skip_locked=True, of=("self",)).values_list("pk"))
            renewed = self._all().filter(pk__in=[pk for (pk,) in rows])
            return renewed.update(lease_expires_at=Now() + lease) if rows else 0

    def release(self, fences: Collection[Fence], **values: Any) -> int:
        """Expire leases, so that another worker may acquire them at once; return how many.

        ``values`` are written with it.
        """
        if not fences:
            return 0
        held = self.held_by_any(fences).filter(lease_expires_at__isnull=False)
        return held.update(**{"lease_expires_at": Now(), **values})

    def release_strays(
        self, worker_id: str, held: Collection[uuid.UUID], *, older_than: timedelta
    ) -> int:
        """Expire the leases of a worker on rows other than those it holds; return how many.

        A lease may be committed although its answer was lost with the connection. Those younger
        than ``older_than`` are left: ``held`` may have been read before them.
        """
        return (
            self.filter(worker_id=worker_id, lease_expires_at__gt=Now())
            .filter(claimed_at__lte=Now() - older_than)
            .exclude(pk__in=held)
            .update(lease_expires_at=Now())
        )

    def expire_leases_of_dead_workers(self, *, stale: timedelta) -> int:
        """Expire the leases of workers without a heartbeat for ``stale``; return how many.

        Skips rows that are being written, so that a worker that hangs inside a transaction does not
        keep the sweepers of all others waiting.
        """
        alive = Heartbeat.objects.alive(stale=stale).filter(worker_id=OuterRef("worker_id"))
        with transaction.atomic():
            dead = list(
                self.filter(lease_expires_at__gt=Now())
                .filter(~Exists(alive))
                .select_for_update(skip_locked=True, of=("self",))
                .values_list("pk", flat=True)
            )
            expired = self._all().filter(pk__in=dead)
            return expired.update(lease_expires_at=Now()) if dead else 0

    def _all(self) -> Self:
        return self.model._default_manager.all()  # type: ignore[return-value] # as_manager's own
