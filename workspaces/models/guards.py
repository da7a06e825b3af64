"""What is known of how engines keep workspaces away from their machines."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models.functions import Now


class NetworkGuardReportQuerySet(models.QuerySet["NetworkGuardReport"]):
    """The latest report of each engine. Database time only."""

    def report(self, engine_id: str, *, enforced: bool, detail: str, egress: str = "") -> None:
        """Write what a worker of the engine has just seen."""
        told = {"enforced": enforced, "detail": detail, "egress": egress, "checked_at": Now()}
        self.update_or_create(engine_id=engine_id, defaults=told)

    def fresh(self, *, within: timedelta) -> NetworkGuardReportQuerySet:
        """Keep the reports that are not older than ``within``."""
        return self.filter(checked_at__gt=Now() - within)


class NetworkGuardReport(models.Model):
    """Whether one engine's machine keeps workspaces and builds away from what is not theirs."""

    engine_id = models.CharField(primary_key=True, max_length=128)
    enforced = models.BooleanField()
    detail = models.TextField()
    egress = models.TextField(
        blank=True, help_text="Why egress policies cannot be enforced; empty: they are."
    )
    checked_at = models.DateTimeField()

    objects = NetworkGuardReportQuerySet.as_manager()

    def __str__(self) -> str:
        return self.engine_id
