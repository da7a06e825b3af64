"""The heartbeats of all workers, in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
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


def serves(name: str, engine: str) -> bool:
    """Whether a worker that serves the engine ``name`` claims what is on ``engine``.

    One without a name serves all of them, and what is on none yet is anybody's.
    """
    return "" in (name, engine) or name == engine


class SlotsByEngine(dict[str, dict[str, SlotUsage]]):
    """The slots of workers by the name of their engine and by kind; "": of every engine."""

    def add(self, engine: str, kind: str, usage: SlotUsage) -> None:
        """Count the slots of one more worker."""
        kept = self.setdefault(engine, {}).setdefault(kind, SlotUsage(capacity=0, in_use=0))
        kept["capacity"] += usage["capacity"]
        kept["in_use"] += usage["in_use"]

    def of(self, engine: str, kind: str) -> SlotUsage | None:
        """Return the slots for what is on ``engine``; None: no worker of it is alive."""
        found = [slots[kind] for slots in self._serving(engine) if kind in slots]
        if not found:
            return None
        return SlotUsage(
            capacity=sum(usage["capacity"] for usage in found),
            in_use=sum(usage["in_use"] for usage in found),
        )

    def engines(self, known: Collection[str] = ()) -> list[str]:
        """Return the names of the engines, ``known`` ones too; one without a name when none has."""
        return sorted({*known, *self} - {""}) or [""]

    def labelled(
        self, kinds: Collection[str], known: Collection[str]
    ) -> dict[tuple[str, str], SlotUsage]:
        """Return the slots by kind and engine, also those that no worker has."""
        nothing = SlotUsage(capacity=0, in_use=0)
        return {
            (kind, engine): self.get(engine, {}).get(kind, nothing)
            for engine in sorted({*known, *self}) or [""]
            for kind in kinds
        }

    def _serving(self, engine: str) -> list[dict[str, SlotUsage]]:
        return [slots for name, slots in self.items() if serves(name, engine)]


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
        engine_name: str = "",
        slots: Mapping[str, SlotUsage] | None = None,
    ) -> None:
        """Write the heartbeat of a worker; the first one registers it.

        ``engine_id`` is what the engine that it works with calls itself, as far as it has answered;
        ``engine_name`` is that of the engine whose rows alone it claims.
        """
        self.update_or_create(
            worker_id=worker_id,
            defaults={
                "seen_at": Now(),
                "draining": draining,
                "engine_id": engine_id,
                "engine_name": engine_name,
                "slots": dict(slots or {}),
            },
            create_defaults={
                "kind": kind,
                "hostname": hostname,
                "pid": pid,
                "capacity": capacity,
                "draining": draining,
                "engine_id": engine_id,
                "engine_name": engine_name,
                "seen_at": Now(),
                "slots": dict(slots or {}),
            },
        )

    def slots_by_engine(self, *, stale: timedelta) -> SlotsByEngine:
        """Return the slots of all live workers that take new work, by engine and kind of slot."""
        total = SlotsByEngine()
        taking = self.alive(stale=stale).filter(draining=False)
        for engine, slots in taking.values_list("engine_name", "slots"):
            for kind, usage in slots.items():
                total.add(engine, kind, usage)
        return total

    def by_engine(self, *, stale: timedelta) -> Counter[str]:
        """Return how many live workers there are, by the name of the engine that they serve."""
        return Counter(self.alive(stale=stale).values_list("engine_name", flat=True))

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
    engine_name = models.CharField(
        max_length=63,
        blank=True,
        default="",
        db_default="",
        help_text="The only engine whose rows it claims; empty: those of all.",
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
