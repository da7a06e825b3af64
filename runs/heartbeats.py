"""The run workers that are alive, and what becomes of leases and sessions of those that are not."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from runs.models import Run, RunWorker

log = structlog.get_logger(__name__)

FORGET_WORKERS_AFTER = timedelta(days=1)


def beat(
    worker_id: str,
    *,
    hostname: str,
    pid: int,
    capacity: int,
    draining: bool,
    engine_id: str = "",
) -> None:
    """Write the heartbeat of a worker; the first one registers it.

    ``engine_id`` is what the engine that it works with calls itself, as far as it has answered.
    """
    RunWorker.objects.update_or_create(
        worker_id=worker_id,
        defaults={"seen_at": Now(), "draining": draining, "engine_id": engine_id},
        create_defaults={
            "hostname": hostname,
            "pid": pid,
            "capacity": capacity,
            "engine_id": engine_id,
            "seen_at": Now(),
        },
    )


def count_alive(*, stale: timedelta) -> int:
    """Return how many workers were seen within ``stale``."""
    return RunWorker.objects.filter(seen_at__gt=Now() - stale).count()


def alive_on(engine_id: str, *, stale: timedelta) -> list[str]:
    """Return the workers of an engine that were seen within ``stale``."""
    alive = RunWorker.objects.filter(seen_at__gt=Now() - stale, engine_id=engine_id)
    return list(alive.order_by("pk").values_list("pk", flat=True))


def unregister(worker_id: str) -> None:
    """Take the row of a worker that ends in order."""
    RunWorker.objects.filter(pk=worker_id).delete()


def expire_leases_of_dead_workers(*, stale: timedelta) -> int:
    """End the leases of workers that stopped beating ``stale`` ago; return how many.

    Passes over rows that are being written, so that a worker that stands still inside a transaction
    does not keep the sweepers of all others waiting.
    """
    alive = RunWorker.objects.filter(worker_id=OuterRef("worker_id"), seen_at__gt=Now() - stale)
    with transaction.atomic():
        dead = list(
            Run.objects.filter(lease_expires_at__gt=Now())
            .filter(~Exists(alive))
            .select_for_update(skip_locked=True, of=("self",))
            .values_list("pk", flat=True)
        )
        ended = Run.objects.filter(pk__in=dead).update(lease_expires_at=Now()) if dead else 0
    if ended:
        log.warning("leases_of_dead_workers_ended", runs=ended)
    return ended


def forget_workers() -> int:
    """Delete heartbeat rows of workers that died long ago; return how many."""
    deleted, _ = RunWorker.objects.filter(seen_at__lt=Now() - FORGET_WORKERS_AFTER).delete()
    return deleted
