"""The Docker Engines that workspaces are placed on."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce, Now

NAME = r"[a-z0-9][a-z0-9-]{0,62}"
LOCAL_ENGINE = "local"
"""The name of the first engine, that of ``DOCKER_HOST``."""
CHANNEL = "svc_engines"
"""Where it is announced that jobs were placed, or that engines have changed."""


class EngineQuerySet(models.QuerySet["Engine"]):
    """Which engines there are, and which answer. Database time only."""

    def known(self) -> EngineQuerySet:
        """Keep the engines that were not declared gone."""
        return self.exclude(state=Engine.State.GONE)

    def served(self) -> list[str]:
        """Return the names of the engines that have workers of their own."""
        return list(self.filter(state__in=Engine.SERVED).values_list("name", flat=True))

    def answering(self, *, stale: timedelta) -> EngineQuerySet:
        """Keep the engines that a build worker has heard within ``stale``."""
        return self.filter(seen_at__gt=Now() - stale)

    def lost(self, *, stale: timedelta) -> EngineQuerySet:
        """Keep the engines that were not heard for ``stale``, where there is another one.

        With one engine alone everything waits for it, and reads say what for.
        """
        others = Engine.objects.known().exclude(pk=OuterRef("pk"))
        return self.known().filter(
            Exists(others), Q(seen_at__isnull=True) | Q(seen_at__lte=Now() - stale)
        )

    def take_starts(self, engine_id: str) -> bool:
        """Whether anything new may be started on the engine that calls itself so; by its rows."""
        states = set(self.filter(engine_id=engine_id).values_list("state", flat=True))
        return not states or Engine.State.ACTIVE in states

    def ends_workers(self, name: str) -> bool:
        """Whether the workers of the engine of that name are to end at once.

        Those of an engine without an address look after what its machine still runs once it is
        gone; who starts them knows no other engine.
        """
        gone = Q(state=Engine.State.GONE) & ~Q(url="")
        return self.filter(Q(state=Engine.State.LEAVING) | gone, pk=name).exists()

    def has_images(self, name: str, repositories: list[str]) -> None:
        """Write of which repositories the engine has images; it is not heard by that."""
        self.known().filter(pk=name).update(images=repositories)

    def heard(
        self,
        name: str,
        *,
        engine_id: str,
        memory_bytes: int,
        cpus: int,
        images: list[str] | None = None,
    ) -> None:
        """Write that a build worker's engine has just answered, and what it is.

        ``images`` None: as they were. An engine that is not known is none that anything could be
        placed on, except the first one.
        """
        told: dict[str, Any] = {
            "engine_id": engine_id,
            "memory_bytes": memory_bytes,
            "cpus": cpus,
            "seen_at": Now(),
        }
        if images is not None:
            told["images"] = images
        if self.known().filter(pk=name).update(**told) or self.exists():
            return
        self.bulk_create([Engine(name=name, **told)], ignore_conflicts=True)


class Engine(models.Model):
    """A Docker Engine, by the name that the operator has given it.

    ::

        active ⇄ draining → leaving → gone → active      (added again)
           └────────────────→ leaving → active           (taken back)

    One that is leaving has no workers any more as soon as they have ended; then it is gone.

    Workers say by ``SVC_ENGINE`` which one they serve. What is placed there carries the name
    (``BuildJob.engine_name``, ``RuntimeInstance.engine_name``); an empty name is of no engine yet.
    """

    class State(models.TextChoices):
        """Whether anything new is placed on it."""

        ACTIVE = "active"
        DRAINING = "draining"
        LEAVING = "leaving"
        GONE = "gone"

    SERVED = (State.ACTIVE, State.DRAINING)
    """The states in which it has workers."""

    name = models.CharField(
        primary_key=True, max_length=63, validators=[RegexValidator(rf"^{NAME}\Z")]
    )
    url = models.CharField(
        max_length=255,
        blank=True,
        help_text="tcp://host:port; empty: what DOCKER_HOST says where its workers run.",
    )
    certificates = models.BinaryField(
        null=True, editable=False, help_text="CA, certificate and key for TLS, sealed."
    )
    state = models.CharField(max_length=8, choices=State.choices, default=State.ACTIVE)
    engine_id = models.CharField(
        max_length=128, blank=True, help_text="What the engine calls itself, once it has answered."
    )
    memory_bytes = models.BigIntegerField(default=0)
    cpus = models.PositiveIntegerField(default=0)
    images = ArrayField(
        models.CharField(max_length=512),
        default=list,
        help_text="The repositories of this installation of which it has images.",
    )
    seen_at = models.DateTimeField(null=True, help_text="When it last answered a build worker.")
    added_at = models.DateTimeField(db_default=Now())

    objects = EngineQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["engine_id"],
                condition=~Q(engine_id="") & ~Q(state="gone"),
                name="engine_known_once",
            )
        ]

    def __str__(self) -> str:
        return self.name


def takes_no_start(name: str) -> Exists:
    """Return the condition that the engine of that name takes nothing new."""
    return Exists(Engine.objects.filter(pk=name).exclude(state=Engine.State.ACTIVE))


def here(name: str) -> Q:
    """Return the condition on ``engine_name`` that a row is of the engine ``name``, or of none."""
    return Q(engine_name__in=["", name])


def lost_since(engine_name: OuterRef, *, stale: timedelta) -> Subquery:
    """Return the time since which the engine of that name was not heard; null while it is."""
    lost: QuerySet[Engine, datetime] = (
        Engine.objects.lost(stale=stale)
        .filter(pk=engine_name)
        .values_list(Coalesce("seen_at", "added_at"), flat=True)
    )
    return Subquery(lost)
