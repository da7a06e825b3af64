"""What a client is told when the workspace refuses something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.errors import (
    BadGateway,
    BadRequest,
    Conflict,
    ControlPlaneError,
    Forbidden,
    InsufficientStorage,
    NotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    ServiceUnavailable,
)
from workspaces.runtimes.base import LaunchError

MAX_MESSAGE = 500

_REFUSALS: Mapping[str, Callable[[str], ControlPlaneError]] = {
    "file-not-found": lambda told: NotFound(told, code="file-not-found"),
    "file-permission-denied": lambda told: Forbidden(told, code="file-permission-denied"),
    "not-a-file": lambda told: Conflict(told, code="not-a-file"),
    "not-a-directory": lambda told: Conflict(told, code="not-a-directory"),
    "file-exists": lambda told: Conflict(told, code="file-exists"),
    "directory-not-empty": lambda told: Conflict(told, code="directory-not-empty"),
    "file-in-use": lambda told: Conflict(told, code="file-in-use"),
    "file-other-disk": lambda told: Conflict(told, code="file-other-disk"),
    "file-link-loop": lambda told: BadRequest(told, code="file-link-loop"),
    "file-name-too-long": lambda told: BadRequest(told, code="file-name-too-long"),
    "bad-path": lambda told: BadRequest(told, code="bad-path"),
    "bad-archive": lambda told: BadRequest(told, code="bad-archive"),
    "precondition-failed": lambda told: PreconditionFailed(told),
    "workspace-disk-full": lambda told: InsufficientStorage(told),
    "access-not-recorded": lambda told: ServiceUnavailable(told, code="access-not-recorded"),
}


def refusal(told: Mapping[str, Any]) -> ControlPlaneError:
    """Return the error for what the agent answered; anything may stand in there."""
    code, message = str(told.get("code")), str(told.get("message"))[:MAX_MESSAGE]
    size = told.get("size")
    if code == "range-not-satisfiable" and isinstance(size, int):
        error = RangeNotSatisfiable(message)
        error.headers = {"Content-Range": f"bytes */{size}"}
        return error
    if code in _REFUSALS:
        return _REFUSALS[code](message)
    return BadGateway(message, code="file-failed")


def unreachable(error: LaunchError) -> BadGateway:
    """Return the error for a workspace whose agent cannot be spoken to."""
    return BadGateway(
        f"The workspace cannot be reached at the moment: {error.message}",
        code="workspace-unreachable",
    )


def cut_off() -> BadGateway:
    """Return the error for an agent that ended before its answer did."""
    return BadGateway(
        "The workspace ended the call early; try again.",
        code="workspace-unreachable",
    )
