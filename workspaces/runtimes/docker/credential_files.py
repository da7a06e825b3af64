"""Giving a container its credentials: on the standard input of an exec, and nowhere else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import structlog

from workspaces.runtimes import boot, credentials
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.exec_channel import ExecChannel

GONE_CODES = ("runtime-gone", "runtime-not-running")

logger = structlog.get_logger(__name__)


def deliver(
    open_agent: Callable[[Sequence[str], float], ExecChannel],
    make_document: Callable[[], bytes],
    *,
    limit: float,
    cancelled: Callable[[], bool],
) -> boot.BootStatus | None:
    """Deliver what ``make_document`` returns, and return what the agent says of the boot then.

    None when it says nothing of that, and when it did not come to a delivery: the container has
    ended, it was ``cancelled``, or ``limit`` seconds are over and the agent is allowed more. Raises
    ``credentials-refused`` and ``agent-silent``.
    """
    seconds = min(limit, credentials.SECONDS)
    deadline = time.monotonic() + seconds
    try:
        wait = min(credentials.WAIT_SECONDS, max(0.0, seconds))
        command = (*credentials.DELIVER, "--wait", str(wait))
        channel = open_agent(command, max(seconds, 0.1))
        with contextlib.closing(channel):
            left = max(0.0, deadline - time.monotonic())
            # Made only now: the less long it is anywhere, the better.
            answer = channel.answer(make_document(), left, cancelled=cancelled)
    except LaunchError as error:
        if error.code in GONE_CODES:
            return None
        raise
    if answer is None:
        if cancelled() or seconds < credentials.SECONDS:
            return None
        raise LaunchError(
            "agent-silent", f"The agent did not accept the credentials within {seconds:g} s."
        )
    credentials.require_taken(answer)
    for note in credentials.notes(answer):
        logger.warning("credentials_delivered_with_limitation", note=note)
    return boot.parse_status(answer.stdout.partition(b"\n")[2])
