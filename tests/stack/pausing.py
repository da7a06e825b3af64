"""Pausing a container at a moment at which the engine survives it.

runc waits for an exec that is just being started, and the engine for runc. Is the container paused
in the middle of that, all of them wait for ever, and with them whoever removes any image.
"""

from __future__ import annotations

import time

from docker.errors import APIError
from docker.models.containers import Container

from tests.support.waiting import LONG_WAIT

WAIT_SECONDS = LONG_WAIT


def pause_beside(container: Container, subcommand: str) -> None:
    """Pause a container once this subcommand of its agent runs; nothing else may be starting."""
    until = time.monotonic() + WAIT_SECONDS
    while not runs_beside(container, subcommand):
        assert time.monotonic() < until, f"agent {subcommand} does not run"
        time.sleep(0.02)
    container.pause()


def runs_beside(container: Container, subcommand: str) -> bool:
    """Whether this subcommand of a container's agent runs."""
    try:
        processes = container.top(ps_args="-eo pid,comm,args")["Processes"]
    except APIError:
        return False  # it is not up yet
    # Started by the engine, or served by the agent that is PID 1.
    shown = [" ".join(each) for each in processes or ()]
    names = (f"/usr/lib/svc/agent {subcommand}", f" agent {subcommand}")
    return any(name in each for name in names for each in shown)
