"""How workers were done with the jobs they had claimed, for ``GET /metrics``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from builds.pipeline.runner import ShutdownError
from controlplane.metrics.families import BUILD_JOBS
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
    finally:
        BUILD_JOBS.count(outcome=outcome)
