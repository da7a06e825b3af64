"""What readiness asks of the run workers."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings

from controlplane.errors import ControlPlaneError
from runs import heartbeats


def run_workers() -> str:
    """Return how many run workers are alive; raise ``ControlPlaneError`` when none is."""
    stale = timedelta(milliseconds=settings.WORKER_HEARTBEAT_STALE_MS)
    alive = heartbeats.count_alive(stale=stale)
    if not alive:
        raise ControlPlaneError("No run worker is alive; start one (manage.py runworker).")
    return f"{alive} alive."
