"""Having an engine's machine lift the limits that its workspaces share, and saying what it kept."""

from __future__ import annotations

import threading
from datetime import timedelta

import structlog
from django.conf import settings

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker import DockerAdapter

EVERY = timedelta(hours=1)
"""A machine that was started again has its own limits again."""

log = structlog.get_logger(__name__)


def lift_kernel_limits(adapter: DockerAdapter, stopped: threading.Event) -> None:
    """Lift them where this installation looks after the machine (``SVC_NETWORK_GUARD``)."""
    if settings.SVC_NETWORK_GUARD != "on" or stopped.is_set():
        return
    image = settings.SVC_NETWORK_GUARD_IMAGE or settings.SVC_BASE_IMAGES["debian"]
    try:
        kept = adapter.lift_kernel_limits(image=image)
    except LaunchError as error:
        kept = error.message
    if kept:
        log.warning("kernel_limits_kept", detail=kept)
