"""The warm pool: what starts often, and the containers that wait for the next start of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from django.db import models
from django.db.models import F, FloatField, Q, Value
from django.db.models.expressions import ExpressionWrapper
from django.db.models.functions import Extract, Least, Now, Power

from controlplane.database.columns import with_columns
from controlplane.database.ids import uuid7

HALF_LIFE = timedelta(minutes=10)
"""After how long a start counts half as much in the demand for its plan."""
MOST_HALVES = 100.0
"""How many half-lives count; after so many nothing is left of a demand."""
FIRST_PAUSE = timedelta(seconds=5)
LONGEST_PAUSE = timedelta(minutes=10)


def _demand_now() -> models.Expression:
    seconds = Extract(Now() - F("demand_at"), "epoch")
    halves = ExpressionWrapper(
        seconds / Value(HALF_LIFE.total_seconds()), output_field=FloatField()
    )
    # After more half-lives the product is too small for a double, which is an error.
    power = Power(Value(0.5), Least(halves, Value(MOST_HALVES)), output_field=FloatField())
    return F("demand") * power


class WarmPlanQuerySet(models.QuerySet["WarmPlan"]):
    """What is known of plans that start. Database time only."""

    def note_start(self, key: str, shape: Mapping[str, Any]) -> None:
        """Count one more start of a plan; its image may be found elsewhere by now."""
        counted = self.filter(pk=key).update(shape=shape, demand=_demand_now() + 1, demand_at=Now())
        if not counted:
            # Of two first ones only one counts, which is no harm.
            self.bulk_create([WarmPlan(key=key, shape=shape, demand=1)], ignore_conflicts=True)

    def demands(self) -> list[PlanDemand]:
        """Return each plan with what is wanted of it now, and whether one may be started."""
        due = Q(retry_at__isnull=True) | Q(retry_at__lte=Now())
        rows = self.annotate(
            now=_demand_now(), may_start=ExpressionWrapper(due, models.BooleanField())
        )
        return [
            PlanDemand(due=row.pop("may_start"), demand=row.pop("now"), plan=WarmPlan(**row))
            for row in cast("Iterable[dict[str, Any]]", rows.order_by("key").values())
        ]

    def failed(self, key: str, message: str) -> None:
        """Try no more for a while, each time for twice as long."""
        pause = Least(Value(FIRST_PAUSE) * Power(Value(2.0), F("failures")), Value(LONGEST_PAUSE))
        self.filter(pk=key).update(
            failures=Least(F("failures") + 1, Value(20)), retry_at=Now() + pause, error=message
        )

    def worked(self, key: str) -> None:
        """Forget the failures of a plan."""
        self.filter(pk=key).exclude(failures=0).update(failures=0, retry_at=None, error="")


class WarmPlan(models.Model):
    """Everything about a container that cannot be changed once it exists, and how often it starts.

    ``key`` stands for all of it, the release included. ``keep`` is how many members an operator
    wants to wait, however many starts there are.
    """

    key = models.CharField(primary_key=True, max_length=160)
    shape = models.JSONField()
    demand = models.FloatField(default=0)
    demand_at = models.DateTimeField(db_default=Now())
    keep = models.PositiveIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = WarmPlanQuerySet.as_manager()

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True, slots=True)
class PlanDemand:
    """A plan with its starts of late, each by its age; ``due``: no failure is to be waited out."""

    plan: WarmPlan
    demand: float
    due: bool


class WarmMemberQuerySet(models.QuerySet["WarmMember"]):
    """Transitions of members. Each is one statement, and only one of two gets the row."""

    def claim(self, *, key: str, engine_id: str, run_id: uuid.UUID) -> WarmMember | None:
        """Give the run the member that waits longest; None when none does. It stays the run's."""
        claimed = self.raw(_CLAIM, [run_id, key, engine_id])
        return next(iter(claimed), None)

    def ready(self, member_id: uuid.UUID) -> bool:
        """Write that a member waits; False when it was given up meanwhile."""
        starting = self.filter(pk=member_id, status=WarmMember.Status.STARTING)
        return bool(starting.update(status=WarmMember.Status.READY, ready_at=Now()))

    def give_up(self, member: WarmMember) -> bool:
        """Forget a member that nobody has claimed meanwhile; False when somebody has."""
        deleted, _ = self.filter(pk=member.pk, status=member.status).delete()
        return bool(deleted)


class WarmMember(models.Model):
    """A container of the warm pool. Its id is the run that it was launched as, which is nobody's.

    ::

        starting → ready → claimed
           └─────────┴────────┴──→ (no row: the reconciler removes what may be left of it)

    A claim is for good: a member is one run's, and is used once. Without a row nobody wants its
    container.
    """

    class Status(models.TextChoices):
        """How far it is."""

        STARTING = "starting"
        READY = "ready"
        CLAIMED = "claimed"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    plan = models.ForeignKey(WarmPlan, on_delete=models.CASCADE, related_name="members")
    engine_id = models.CharField(max_length=128)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.STARTING)
    run_id = models.UUIDField(null=True, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ready_at = models.DateTimeField(null=True)
    claimed_at = models.DateTimeField(null=True)

    objects = WarmMemberQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                fields=["plan", "engine_id", "id"],
                name="warm_member_ready",
                condition=Q(status="ready"),
            )
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status="claimed", run_id__isnull=False, claimed_at__isnull=False)
                | (~Q(status="claimed") & Q(run_id__isnull=True)),
                name="warm_member_claimed_by_a_run",
            )
        ]

    def __str__(self) -> str:
        return f"{self.id} ({self.status})"


_CLAIM = with_columns(
    """
UPDATE workspaces_warmmember AS member
SET status = 'claimed', run_id = %s, claimed_at = statement_timestamp()
WHERE id = (
    SELECT id FROM workspaces_warmmember
    WHERE plan_id = %s AND engine_id = %s AND status = 'ready'
    ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING member.*""",
    member=WarmMember,
)
