"""Limits by uid are lifted where the installation looks after its engine's machine, else left."""

from __future__ import annotations

import threading

import pytest
import structlog.testing
from pytest_django.fixtures import Settings

from workspaces.lifecycle.enforcement.shared_limits import lift_kernel_limits
from workspaces.runtimes.docker import DockerAdapter


@pytest.mark.parametrize(("guard", "says"), [("on", 1), ("external", 0), ("off", 0)])
def test_an_engine_that_does_not_answer_is_told_and_one_that_is_left_alone_is_not_asked(
    settings: Settings, guard: str, says: int
) -> None:
    settings.SVC_NETWORK_GUARD = guard
    adapter = DockerAdapter("tcp://127.0.0.1:1", "nobody")
    with structlog.testing.capture_logs() as logs:
        lift_kernel_limits(adapter, threading.Event())
    assert [each["event"] for each in logs].count("kernel_limits_kept") == says
