"""What a worker asks of the rows about the engine that it serves, before it begins."""

from __future__ import annotations

import time

import structlog
from django.db import DatabaseError, InterfaceError

from workspaces.engines.runtime_adapters import placement_engine
from workspaces.models import Engine

log = structlog.get_logger(__name__)

LOOK_EVERY = 1.0
"""Seconds between two looks at an engine that is leaving."""


def await_served_engine() -> str:
    """Return what the engine was last called, once it is not leaving; empty where that is unknown.

    Whoever starts workers may start one again that has ended because its engine is leaving: it
    waits here, and is no worker yet. Without a database nothing is known, and nothing waited for.
    """
    name = placement_engine()
    waits = False
    try:
        while Engine.objects.filter(pk=name, state=Engine.State.LEAVING).exists():
            if not waits:
                log.info("engine_leaving_awaited", engine=name)
                waits = True
            time.sleep(LOOK_EVERY)
        return Engine.objects.filter(pk=name).values_list("engine_id", flat=True).first() or ""
    except (DatabaseError, InterfaceError):
        return ""
