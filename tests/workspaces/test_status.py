"""The surfaced status out of attempt, job and runtime."""

from __future__ import annotations

import itertools

import pytest

from workspaces.models import Attempt, BuildJob, RuntimeInstance
from workspaces.status import SurfacedStatus, surfaced_status

S = SurfacedStatus


def test_ready_needs_attempt_succeeded_job_succeeded_and_runtime_running() -> None:
    ready = [
        states
        for states in itertools.product(
            Attempt.Status.values,
            [*BuildJob.Status.values, None],
            [*RuntimeInstance.Status.values, None],
        )
        if surfaced_status(attempt=states[0], job=states[1], runtime=states[2]) is S.READY
    ]

    assert ready == [("succeeded", "succeeded", "running")]


@pytest.mark.parametrize(
    ("attempt", "job", "runtime", "status"),
    [
        ("queued", "queued", None, S.QUEUED),
        ("queued", "running", None, S.RUNNING),
        ("running", "running", None, S.RUNNING),
        ("running", "succeeded", "pending", S.RUNNING),
        ("running", "failed", None, S.FAILED),
        ("failed", "failed", "failed", S.FAILED),
        ("succeeded", "succeeded", "failed", S.FAILED),
        ("succeeded", "succeeded", "stopped", S.STOPPED),
        ("cancelled", "cancelled", None, S.CANCELLED),
        ("running", "cancelled", "failed", S.CANCELLED),
    ],
)
def test_the_first_rule_that_fits_decides(
    attempt: str, job: str, runtime: str | None, status: SurfacedStatus
) -> None:
    assert surfaced_status(attempt=attempt, job=job, runtime=runtime) is status
