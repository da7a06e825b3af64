"""Engines as rows, for tests that start none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from workspaces.models import Engine

GIB = 1024**3
STALE = timedelta(minutes=20)


def make_engine(
    name: str, *, memory: int = 16 * GIB, state: str = "active", seen: timedelta = timedelta()
) -> Engine:
    """Write the row of an engine that was last heard ``seen`` ago."""
    engine = Engine.objects.create(
        name=name, engine_id=f"id-of-{name}", memory_bytes=memory, cpus=4, state=state
    )
    Engine.objects.filter(pk=name).update(seen_at=Now() - seen)
    return engine


def silence(name: str) -> None:
    """Have an engine not be heard for longer than one that lives is."""
    assert Engine.objects.filter(pk=name).update(seen_at=Now() - 2 * STALE)


def persistent() -> dict[str, Any]:
    """Return the blueprint of a workspace whose volumes are kept."""
    return {"harness": {"id": "shell"}, "runtime": {"persistence": "persistent"}}
