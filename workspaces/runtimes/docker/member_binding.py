"""Telling a container of the warm pool whose it is, on the standard input of its agent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from workspaces.runtimes import boot
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.exec_channel import ExecChannel

SECONDS = 10.0
"""How long an agent that has said that it waits may take to answer."""
WAIT_SECONDS = 2
"""How long the call then waits for the end of the boot."""


def bind(
    open_agent: Callable[[Sequence[str], float], ExecChannel],
    document: bytes,
    *,
    limit: float,
    cancelled: Callable[[], bool],
) -> boot.BootStatus | None:
    """Bind the container, and return what the agent says of the boot then, if it does.

    The document is that of ``boot.binding``. A container that is bound to the same run already
    stays as it is. Raises ``LaunchError``: ``launch-refused`` when the agent does not do it,
    ``agent-silent`` when it says nothing.
    """
    seconds = max(0.1, min(limit, SECONDS))
    deadline = time.monotonic() + seconds
    wait = min(WAIT_SECONDS, seconds / 2)
    channel = open_agent((*boot.BIND, "--wait", str(wait)), seconds)
    with contextlib.closing(channel):
        answer = channel.answer(document, deadline - time.monotonic(), cancelled=cancelled)
    if answer is None:
        raise LaunchError("agent-silent", f"The agent gave no answer for {seconds:g} s.")
    if answer.exit_code != 0:
        said = boot.one_line(answer.stderr.decode("utf-8", "replace")) or "it gave no reason"
        raise LaunchError("launch-refused", f"The agent did not accept its configuration: {said}")
    status = boot.parse_status(answer.stdout)
    if status is not None and status.phase == boot.UNBOUND:
        raise LaunchError(
            "agent-silent", "The agent was given its configuration and did not continue."
        )
    return status
