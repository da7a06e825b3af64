"""How many workspaces one owner may have, and how many builds at once."""

from __future__ import annotations

from django.db.models import Q

from controlplane.owner_limits import OwnerLimit, require_room
from workspaces.lifecycle.records import records
from workspaces.models import BuildJob, Workspace


def _workspaces(owner_user_id: str) -> int:
    return Workspace.objects.owned_by(owner_user_id).filter(deleted_at__isnull=True).count()


def _running_builds(owner_user_id: str) -> int:
    """Return how many jobs are queued, building or launching."""
    open_jobs = Q(status=BuildJob.Status.QUEUED) | Q(lease_expires_at__isnull=False)
    jobs = BuildJob.objects.filter(open_jobs, attempt__workspace__owner_user_id=owner_user_id)
    return jobs.count()


WORKSPACES = OwnerLimit(
    setting="OWNER_MAX_WORKSPACES",
    name="workspaces",
    code="too-many-workspaces",
    what="workspaces",
    present=_workspaces,
)
"""Those that are not deleted, whether they run or not."""
RUNNING_BUILDS = OwnerLimit(
    setting="OWNER_MAX_RUNNING_BUILDS",
    name="runningBuilds",
    code="too-many-builds",
    what="builds queued or under way",
    present=_running_builds,
)


def require_room_to_start(owner_user_id: str, *, new_workspace: bool) -> None:
    """Raise ``OwnerLimitReached`` unless the owner may start one more sandbox.

    To be called first in the transaction that writes it.
    """
    new = (WORKSPACES,) if new_workspace else ()
    require_room(owner_user_id, (*new, RUNNING_BUILDS, records().size_limit))
