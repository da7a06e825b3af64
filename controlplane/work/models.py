"""The heartbeats of all workers, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TypedDict

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

FORGET_AFTER = timedelta(days=1)


def heartbeat_stale() -> timedelta:
    """Return after how long without a heartbeat a worker is taken for dead."""
    return timedelta(milliseconds=settings.WORKER_HEARTBEAT_STALE_MS)


class SlotUsage(TypedDict):
    """How many things of one kind a worker does at once, and how many it does now."""

    capacity: int
    in_use: int


class HeartbeatQuerySet(models.QuerySet["Heartbeat"]):
    """Who is alive. Database time only."""

    def build(self) -> HeartbeatQuerySet:
        """Keep the build workers."""
        return self.filter(kind=Heartbeat.Kind.BUILD)

    def run(self) -> HeartbeatQuerySet:
        """Keep the run workers."""
        return self.filter(kind=Heartbeat.Kind.RUN)

    def alive(self, *, stale: timedelta) -> HeartbeatQuerySet:
        """Keep the workers that were seen within ``stale``."""
        return self.filter(seen_at__gt=Now() - stale)

    def beat(
        self,
        worker_id: str,
        *,
        kind: Heartbeat.Kind,
        hostname: str,
        pid: int,
        capacity: int,
        draining: bool = False,
        engine_id: str = "",
        slots: Mapping[str, SlotUsage] | None = None,
    ) -> None:
        """Write the heartbeat of a worker; the first one registers it.

        ``engine_id`` is what the engine that it works with calls itself, as far as it has answered.
        """
        self.update_or_create(
            worker_id=worker_id,
            defaults={
                "seen_at": Now(),
                "draining": draining,
                "engine_id": engine_id,
                "slots": dict(slots or {}),
            },
            create_defaults={
                "kind": kind,
                "hostname": hostname,
                "pid": pid,
                "capacity": capacity,
                "draining": draining,
                "engine_id": engine_id,
                "seen_at": Now(),
                "slots": dict(slots or {}),
            },
        )

    def slots_in_use(self, *, stale: timedelta) -> dict[str, SlotUsage]:
        """Return the slots of all live workers that take new work, by kind of slot."""
        total: dict[str, SlotUsage] = {}
        for slots in self.alive(stale=stale).filter(draining=False).values_list("slots", flat=True):
            for kind, usage in slots.items():
                kept = total.setdefault(kind, SlotUsage(capacity=0, in_use=0))
                kept["capacity"] += usage["capacity"]
                kept["in_use"] += usage["in_use"]
        return total

    def forget(self) -> int:
        """Delete the rows of workers that died long ago; return how many."""
        deleted, _ = self.filter(seen_at__lt=Now() - FORGET_AFTER).delete()
        return deleted


class Heartbeat(models.Model):
    """The heartbeat of one worker process. A worker that exits in order deletes its row."""

    class Kind(models.TextChoices):
        """What the worker does."""

        BUILD = "build"
        RUN = "run"

    worker_id = models.CharField(primary_key=True, max_length=255)
    kind = models.CharField(max_length=8, choices=Kind.choices)
    hostname = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    capacity = models.PositiveIntegerField(help_text="How many jobs or runs it does at once.")
    engine_id = models.CharField(
        max_length=128,
        blank=True,
        default="",
        db_default="",
        help_text="The engine it works with; empty until that has answered once.",
    )
    draining = models.BooleanField(default=False)
    slots = models.JSONField(
        default=dict, help_text="By kind of slot: {capacity, in_use} at the last heartbeat."
    )
    started_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField()

    objects = HeartbeatQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["kind", "seen_at"], name="heartbeat_seen")]

    def __str__(self) -> str:
        return self.worker_id
