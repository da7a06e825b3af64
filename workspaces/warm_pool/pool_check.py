"""What ``/readyz`` says of the warm pool."""

from __future__ import annotations

from django.conf import settings

from controlplane.errors import ControlPlaneError
from workspaces.models import WarmMember, WarmPlan

FAILURES = 3
"""After how many in a row it is told."""


class PoolFailsError(ControlPlaneError):
    """No containers can be started for the pool; starts do not wait for that."""


def check() -> str:
    """Say how many containers wait; raise ``PoolFailsError`` when none can be started."""
    if not settings.WORKSPACE_WARM_POOL_SIZE:
        return "It is off: WORKSPACE_WARM_POOL_SIZE is 0."
    failing = WarmPlan.objects.filter(failures__gte=FAILURES).order_by("-failures").first()
    if failing is not None:
        raise PoolFailsError(
            f"Containers of {failing.shape.get('image', 'an image')} could not be started "
            f"{failing.failures} times in a row; starts are slower meanwhile. {failing.error}"
        )
    ready = WarmMember.objects.filter(status=WarmMember.Status.READY).count()
    return f"Containers that wait for a start: {ready}."
