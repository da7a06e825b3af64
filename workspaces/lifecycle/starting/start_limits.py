"""How many workspaces one owner may have, and how many builds at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Q

from controlplane.owner_limits import OwnerLimit, lock_owner, require_room
from workspaces.lifecycle.records import records
from workspaces.models import BuildJob, Workspace


def _workspaces(owner_user_id: str) -> int:
    return Workspace.objects.owned_by(owner_user_id).filter(deleted_at__isnull=True).count()


def _running_builds(owner_user_id: str) -> int:
    """Return how many jobs build, or may have to: those that have no image yet."""
    running = Q(status=BuildJob.Status.RUNNING, lease_expires_at__isnull=False)
    may_build = Q(status=BuildJob.Status.QUEUED) | running
    jobs = BuildJob.objects.filter(may_build, attempt__workspace__owner_user_id=owner_user_id)
    return jobs.count()


def _is_built(owner_user_id: str, spec: Mapping[str, Any]) -> bool:
    """Whether the owner has an image of just this blueprint."""
    same = BuildJob.objects.with_image().filter(
        attempt__sandbox__owner_user_id=owner_user_id, attempt__sandbox__spec=spec
    )
    return same.exists()


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


def require_room_to_start(
    owner_user_id: str, *, new_workspace: bool, spec: Mapping[str, Any]
) -> None:
    """Raise ``OwnerLimitReached`` unless the owner may start one more sandbox of this blueprint.

    Builds do not keep one from starting whose image is there. To be called first in the
    transaction that writes it.
    """
    new = (WORKSPACES,) if new_workspace else ()
    builds = () if _has_room_for_builds(owner_user_id, spec) else (RUNNING_BUILDS,)
    require_room(owner_user_id, (*new, *builds, records().size_limit))


def _has_room_for_builds(owner_user_id: str, spec: Mapping[str, Any]) -> bool:
    """Whether the owner may have one more build, or needs none for this blueprint."""
    if not RUNNING_BUILDS.maximum:
        return True
    lock_owner(owner_user_id)
    full = _running_builds(owner_user_id) >= RUNNING_BUILDS.maximum
    return not full or _is_built(owner_user_id, spec)
