"""How build jobs end, and how long their phases take, for ``GET /metrics``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from builds.pipeline.job_slots import BuildSlotNeeded
from builds.pipeline.job_state import ShutdownError
from controlplane.errors import JobError
from controlplane.metrics.families import BUILD_JOBS, BUILD_PHASES
from workspaces.models import LeaseLost


@contextmanager
def counted() -> Iterator[None]:
    """Count the work on one claimed job by how it ends."""
    outcome = "failed"
    try:
        yield
        outcome = "succeeded"
    except LeaseLost:
        outcome = "lost"
        raise
    except ShutdownError:
        outcome = "given-back"
        raise
    except BuildSlotNeeded:
        outcome = "waiting"
        raise
    finally:
        BUILD_JOBS.count(outcome=outcome)


@contextmanager
def measured(phase: str) -> Iterator[None]:
    """Observe how long one ``phase`` of a job takes, and how it ends."""
    started = time.monotonic()
    outcome = "failed"
    try:
        yield
        outcome = "succeeded"
    except LeaseLost:
        outcome = "stopped"
        raise
    except JobError as exc:
        if exc.code.endswith("-cancelled"):
            outcome = "stopped"
        raise
    finally:
        BUILD_PHASES.observe(time.monotonic() - started, phase=phase, outcome=outcome)
