"""Runs and their execution records."""

from runs.models.record_rows import (
    PARTITION_RUNS,
    RunChange,
    RunCheckpoint,
    RunEvent,
    RunHead,
    RunLoss,
    RunOwner,
    RunProcess,
)
from runs.models.recorded_runs import (
    NextRunNumber,
    Run,
    RunInput,
    RunInputHead,
    RunQuerySet,
    RunRequest,
)

__all__ = [
    "PARTITION_RUNS",
    "NextRunNumber",
    "Run",
    "RunChange",
    "RunCheckpoint",
    "RunEvent",
    "RunHead",
    "RunInput",
    "RunInputHead",
    "RunLoss",
    "RunOwner",
    "RunProcess",
    "RunQuerySet",
    "RunRequest",
]
