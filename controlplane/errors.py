"""The exceptions that reach a client or settle a job.

::

    ControlPlaneError            500 internal-error       becomes a problem body (RFC 9457)
    ├── BadRequest               400 bad-request
    │   └── ValidationFailed     400 validation-failed    one Fault for each thing that is wrong
    ├── Unauthorized             401 unauthorized
    ├── Forbidden                403 forbidden
    ├── NotFound                 404 not-found
    ├── RequestTimeout           408 request-timeout      the client was too slow
    ├── Conflict                 409 conflict
    ├── Gone                     410 gone
    ├── PreconditionFailed       412 precondition-failed  a condition of the request does not hold
    ├── PayloadTooLarge          413 body-too-large
    ├── RangeNotSatisfiable      416 range-not-satisfiable
    ├── ExpectationFailed        417 expectation-failed
    ├── UpgradeRequired          426 upgrade-required     this is for a WebSocket
    ├── OwnerLimitReached        429 owner-limit-reached  the owner has all that one may have
    ├── HeadTooLarge             431 head-too-large       request line and headers
    ├── BadGateway               502 upstream-failed      another system answered wrongly or not
    ├── ServiceUnavailable       503 service-unavailable  we are not set up for this
    └── InsufficientStorage      507 workspace-disk-full  the workspace has no room for it

    JobError                     the failure of a job: `code` and `message` are stored on its row

Whoever raises a ``ControlPlaneError`` writes ``detail`` for the caller: it never holds SQL, paths,
argv or secrets. ``controlplane.http.problems`` turns it into the response body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_FAULTS = 500
"""No answer names more: a body of the largest size may hold a hundred thousand."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a request, and where.

    Exactly one of ``pointer`` (RFC 6901, into the body), ``parameter`` (of the query or path) and
    ``header`` says where; ``pointer=""`` with the other two empty means the body as a whole.
    """

    code: str
    detail: str
    pointer: str = ""
    parameter: str = ""
    header: str = ""

    def to_wire(self) -> dict[str, str]:
        """Return the fault as it appears in ``errors[]`` of a problem body."""
        place = (
            {"parameter": self.parameter}
            if self.parameter
            else {"header": self.header}
            if self.header
            else {"pointer": self.pointer}
        )
        return {**place, "code": self.code, "detail": self.detail}


class ControlPlaneError(Exception):
    """A failure that a client is told about; see the tree in the module's docstring."""

    status = 500
    code = "internal-error"
    title = "Internal error"
    wait: int | None = None
    """After how many seconds the client may try again; the header ``Retry-After``."""

    def __init__(
        self, detail: str, *, code: str | None = None, errors: Sequence[Fault] = ()
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.errors = tuple(errors)
        self.members: dict[str, object] = {}
        """Extension members of the problem body (RFC 9457 section 3.2)."""
        self.headers: dict[str, str] = {}
        """Headers of the answer."""


class BadRequest(ControlPlaneError):
    """The request cannot be understood or is not allowed as it stands."""

    status, code, title = 400, "bad-request", "Bad request"


class ValidationFailed(BadRequest):
    """Members of the request are wrong; ``errors`` names every one of them."""

    code, title = "validation-failed", "Validation failed"

    def __init__(self, errors: Sequence[Fault], detail: str = "") -> None:
        count = len(errors)
        told = f"; errors names the first {MAX_FAULTS}" if count > MAX_FAULTS else "; see errors"
        super().__init__(
            detail or f"The request has {count} fault{'' if count == 1 else 's'}{told}.",
            errors=errors[:MAX_FAULTS],
        )


class Unauthorized(ControlPlaneError):
    """A credential is missing or wrong."""

    status, code, title = 401, "unauthorized", "Unauthorized"


class Forbidden(ControlPlaneError):
    """The caller is known and may not do this."""

    status, code, title = 403, "forbidden", "Forbidden"


class NotFound(ControlPlaneError):
    """What the request names does not exist, or belongs to somebody else."""

    status, code, title = 404, "not-found", "Not found"


class RequestTimeout(ControlPlaneError):
    """The client did not send all of its request in time."""

    status, code, title = 408, "request-timeout", "Request timeout"


class Conflict(ControlPlaneError):
    """The request is sound but does not fit the present state."""

    status, code, title = 409, "conflict", "Conflict"


class Gone(ControlPlaneError):
    """What the request names existed and was removed for good."""

    status, code, title = 410, "gone", "Gone"


class PreconditionFailed(ControlPlaneError):
    """A condition that the request makes does not hold; nothing was changed."""

    status, code, title = 412, "precondition-failed", "Precondition failed"


class PayloadTooLarge(ControlPlaneError):
    """The body is larger than the server accepts."""

    status, code, title = 413, "body-too-large", "Body too large"


class RangeNotSatisfiable(ControlPlaneError):
    """What is there is shorter than the range that was asked for."""

    status, code, title = 416, "range-not-satisfiable", "Range not satisfiable"


class ExpectationFailed(ControlPlaneError):
    """The header ``Expect`` asks for what the server does not do."""

    status, code, title = 417, "expectation-failed", "Expectation failed"


class HeadTooLarge(ControlPlaneError):
    """Request line and headers are larger than the server reads."""

    status, code, title = 431, "head-too-large", "Request header fields too large"


class UpgradeRequired(ControlPlaneError):
    """What is at this address is spoken to in another protocol than the request's."""

    status, code, title = 426, "upgrade-required", "Upgrade required"


class OwnerLimitReached(ControlPlaneError):
    """The owner has as much as this installation allows; waiting alone does not change that."""

    status, code, title = 429, "owner-limit-reached", "Owner limit reached"


class BadGateway(ControlPlaneError):
    """Another system that we asked answered wrongly or not at all."""

    status, code, title = 502, "upstream-failed", "Upstream failed"


class ServiceUnavailable(ControlPlaneError):
    """This installation is not set up for the request, or not at the moment."""

    status, code, title = 503, "service-unavailable", "Service unavailable"


class InsufficientStorage(ControlPlaneError):
    """The disk that it was to be stored on is full."""

    status, code, title = 507, "workspace-disk-full", "Insufficient storage"


class JobError(Exception):
    """The failure of a job.

    ``code`` is kebab-case and stable; ``message`` is meant for the owner of the job: redacted and
    bounded by whoever raises it. Both are stored on the job (specification, "Errors").
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
