"""How long the phases of build jobs take, and how they end, for ``GET /metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from controlplane.errors import JobError
from controlplane.metrics.families import BUILD_PHASES
from workspaces.models import LeaseLost

P = ParamSpec("P")
T = TypeVar("T")


def measured(phase: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Observe every call of a function as one ``phase`` of a job."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            started = time.monotonic()
            outcome = "failed"
            try:
                result = function(*args, **kwargs)
                outcome = "succeeded"
                return result
            except LeaseLost:
                outcome = "stopped"
                raise
            except JobError as exc:
                if exc.code.endswith("-cancelled"):
                    outcome = "stopped"
                raise
            finally:
                BUILD_PHASES.observe(time.monotonic() - started, phase=phase, outcome=outcome)

        return call

    return decorate
