"""What goes wrong, in E2B's terms: a status and a message, or a code of Connect and a message."""

from __future__ import annotations

from controlplane_client import (
    ControlPlaneError,
    NotReady,
    Problem,
    RecordGone,
    Unreachable,
    WaitTimeout,
)

STATUS_OF_CODE = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
"""The status of an RPC without a stream that failed, by the code of the Connect protocol."""

_CODE_OF_STATUS = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    409: "failed_precondition",
    412: "failed_precondition",
    413: "invalid_argument",
    429: "resource_exhausted",
    507: "resource_exhausted",
    502: "unavailable",
    503: "unavailable",
    504: "deadline_exceeded",
}

_NOT_RUNNING = {"workspace-not-ready", "workspace-deleted", "workspace-ended", "workspace-gone"}


class Refused(Exception):
    """A call that is not done: ``status`` for HTTP, ``code`` for RPCs."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code, self.message = status, code, message
        super().__init__(message)


def unsupported(what: str) -> Refused:
    """Return the refusal of something that E2B has and this service has not."""
    return Refused(501, "unimplemented", f"This service does not support {what}.")


def sandbox_not_found(sandbox_id: str) -> Refused:
    """Return the refusal of a sandbox that there is not, for the control plane."""
    return Refused(404, "not_found", f"Sandbox {sandbox_id[:64]} not found")


def not_running(sandbox_id: str) -> Refused:
    """Return what E2B's proxy answers when there is no sandbox behind a call into one."""
    # The SDKs recognize a sandbox that was killed or is paused by these words.
    return Refused(502, "unavailable", f"The sandbox was not found: {sandbox_id[:64]} does not run")


def refusal_of(error: Exception, sandbox_id: str = "") -> Refused:
    """Return the refusal for an error of the API's client."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, Problem):
        if error.code in _NOT_RUNNING or error.code == "workspace-not-found":
            return not_running(sandbox_id)
        code = _CODE_OF_STATUS.get(error.status, "internal")
        return Refused(error.status, code, str(error))
    if isinstance(error, NotReady):
        return Refused(500, "internal", f"{error} ({error.code or 'unknown'})")
    if isinstance(error, WaitTimeout):
        return Refused(504, "deadline_exceeded", str(error))
    if isinstance(error, Unreachable):
        return Refused(503, "unavailable", "The control plane does not answer; try again.")
    if isinstance(error, RecordGone | ControlPlaneError):
        return Refused(500, "internal", str(error))
    raise error
