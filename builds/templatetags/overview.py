"""``{% overview %}``: how things stand, on the admin's start page."""

from __future__ import annotations

from typing import Any

from django import template
from django.contrib.auth.models import AbstractUser
from django.db import DatabaseError, transaction

from builds import start_page
from builds.charts import charts
from controlplane.work.models import heartbeat_stale

register = template.Library()


@register.inclusion_tag("admin/overview.html", takes_context=True)
def overview(context: dict[str, Any]) -> dict[str, Any]:
    """Show what the person who looks may see of jobs, workspaces and workers."""
    user: AbstractUser = context["request"].user
    stale = heartbeat_stale()
    shown: dict[str, Any] = {"listings": []}
    try:
        with transaction.atomic():
            if user.has_perm("workspaces.view_buildjob"):
                shown["listings"] += [
                    (start_page.queued(), "admin:workspaces_buildjob_changelist"),
                    (start_page.building(), "admin:workspaces_buildjob_changelist"),
                ]
            if user.has_perm("workspaces.view_sandbox"):
                shown["listings"] += [
                    (start_page.ready(), "admin:workspaces_sandbox_changelist"),
                    (start_page.failed(), "admin:workspaces_sandbox_changelist"),
                ]
            if user.has_perm("workspaces.view_transition"):
                shown["listings"].append(
                    (start_page.ending(), "admin:workspaces_transition_changelist")
                )
            if user.has_perm("work.view_heartbeat"):
                shown["charts"] = charts()
                shown["build_workers"] = start_page.build_workers(stale=stale)
                shown["run_workers"] = start_page.run_workers(stale=stale)
    except DatabaseError:
        # A migration that is still to come, say: the list of pages below is of use all the same.
        return {"unreadable": True}
    for kind in ("build_workers", "run_workers"):
        alive = [worker for worker in shown.get(kind, ()) if worker.state != "silent"]
        shown[f"{kind}_at_hand"] = len(alive)
    return shown
