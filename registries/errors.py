"""What goes wrong between us and a registry.

::

    RegistryError          502 registry-failed             the registry failed or was not reached
    InvalidReferenceError  400 registry-reference-invalid  a name does not follow the grammar
"""

from __future__ import annotations

from enum import StrEnum

from controlplane.errors import BadGateway, BadRequest


class Reason(StrEnum):
    """How the registry failed, for programs."""

    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed-out"
    TLS_FAILED = "tls-failed"
    UNAUTHORIZED = "unauthorized"
    REDIRECTED = "redirected"
    STATUS = "status"
    MALFORMED = "malformed"
    TOO_LARGE = "too-large"


class RegistryError(BadGateway):
    """The registry failed, was not reached or answered something that cannot be right.

    The problem body tells ``upstream``: its ``name``, the ``reason`` and, when it answered, its
    ``status``. ``cause`` is for our own log.
    """

    code, title = "registry-failed", "Registry failed"

    def __init__(
        self, detail: str, reason: Reason, *, upstream_status: int | None = None, cause: str = ""
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.upstream_status = upstream_status
        self.cause = cause
        told: dict[str, object] = {"name": "registry", "reason": reason.value}
        if upstream_status is not None:
            told["status"] = upstream_status
        self.members["upstream"] = told


class InvalidReferenceError(BadRequest):
    """A repository, tag or digest does not follow the OCI grammar."""

    code, title = "registry-reference-invalid", "Invalid registry reference"
