"""The one status a person sees, out of the states of attempt, build job and runtime instance."""

from __future__ import annotations

from django.db import models


class SurfacedStatus(models.TextChoices):
    """What reads of sandboxes, workspaces and attempts call the state of things."""

    QUEUED = "queued"
    RUNNING = "running"
    READY = "ready"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


TERMINAL = {SurfacedStatus.FAILED, SurfacedStatus.CANCELLED, SurfacedStatus.STOPPED}
"""States that only another attempt leaves."""


DELETED = "deleted"
"""What a workspace whose containers and volumes are gone is called; it has no sandbox's state."""

WORKSPACE_STATUSES = [*SurfacedStatus.choices, (DELETED, "Deleted")]


def surfaced_status(*, attempt: str, job: str | None, runtime: str | None) -> SurfacedStatus:
    """Return the status that the three states add up to; the first rule that fits decides.

    ``ready`` needs all three: attempt ``succeeded``, job ``succeeded``, runtime ``running``
    (specification, "States and transitions"). A runtime that is being stopped is ``running``: it
    cannot be entered any more, and is not gone yet.
    """
    if "cancelled" in (attempt, job):
        return SurfacedStatus.CANCELLED
    if "failed" in (attempt, job, runtime):
        return SurfacedStatus.FAILED
    if runtime == "stopped":
        return SurfacedStatus.STOPPED
    if (attempt, job, runtime) == ("succeeded", "succeeded", "running"):
        return SurfacedStatus.READY
    if attempt in ("running", "succeeded") or job in ("running", "succeeded"):
        return SurfacedStatus.RUNNING
    return SurfacedStatus.QUEUED
