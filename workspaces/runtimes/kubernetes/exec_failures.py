"""What it means when the API server does not begin an exec."""

from __future__ import annotations

import json

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.boot import one_line

_NOT_RUNNING = (
    "container not found",
    "cannot exec in a stopped",
    "is not running",
    "not running",
    "completed pod",
    "does not have a host assigned",
    "is not created or running",
    "container is in",
)


def refusal_of(status: int, content: bytes) -> LaunchError:
    """Return the error for an exec that was answered with ``status``."""
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        message = content.decode("utf-8", "replace")
    if any(each in message for each in _NOT_RUNNING):
        return LaunchError("runtime-not-running", "The workspace's Pod is not running.")
    if status == 404:
        return LaunchError("runtime-gone", "The workspace has no Pod.")
    if status in (401, 403):
        return LaunchError(
            "adapter-unavailable", f"The cluster does not allow an exec: {one_line(message)}"
        )
    if "no route to host" in message or "connection refused" in message or "i/o timeout" in message:
        return LaunchError(
            "adapter-unavailable", "The workspace's node does not answer the cluster."
        )
    said = one_line(message) or f"HTTP status {status}"
    return LaunchError("adapter-unavailable", f"The cluster did not begin the exec: {said}")
