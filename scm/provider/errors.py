"""How the provider failed; see the tree in :mod:`scm.provider`."""

from __future__ import annotations

from enum import StrEnum

from controlplane.errors import BadGateway


class Reason(StrEnum):
    """How the provider failed, for programs."""

    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed-out"
    TLS_FAILED = "tls-failed"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    RATE_LIMITED = "rate-limited"
    NOT_FOUND = "not-found"
    SUSPENDED = "suspended"
    REFUSED = "refused"
    REDIRECTED = "redirected"
    STATUS = "status"
    MALFORMED = "malformed"
    TOO_LARGE = "too-large"


class ProviderError(BadGateway):
    """The provider failed, was not reached, refused or answered something that cannot be right.

    The problem body tells ``upstream``: its ``name``, the ``reason``, the ``status`` when it
    answered, and ``retryAfterSeconds`` when it wants us to wait. ``cause`` is for our own log.
    """

    code, title = "scm-provider-failed", "Source-hosting provider failed"

    def __init__(
        self, detail: str, reason: Reason, *, upstream_status: int | None = None, cause: str = ""
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.upstream_status = upstream_status
        self.cause = cause
        self.told: dict[str, object] = {"name": "scm-provider", "reason": reason.value}
        if upstream_status is not None:
            self.told["status"] = upstream_status
        self.members["upstream"] = self.told


class RateLimitedError(ProviderError):
    """The provider has had enough of our questions for now."""

    def __init__(self, *, upstream_status: int, retry_after: int | None) -> None:
        wait = "later" if retry_after is None else f"in {retry_after} seconds"
        super().__init__(
            f"The source-hosting provider limits the request rate; try again {wait}.",
            Reason.RATE_LIMITED,
            upstream_status=upstream_status,
        )
        self.retry_after = self.wait = retry_after
        """Seconds; ``wait`` becomes the header ``Retry-After`` of the problem."""
        if retry_after is not None:
            self.told["retryAfterSeconds"] = retry_after


class InstallationGoneError(ProviderError):
    """The provider does not know the installation, or not any more."""

    def __init__(self) -> None:
        super().__init__(
            "The source-hosting provider does not know this installation.",
            Reason.NOT_FOUND,
            upstream_status=404,
        )


class InstallationSuspendedError(ProviderError):
    """The installation is suspended: it gives no tokens."""

    def __init__(self) -> None:
        super().__init__(
            "The installation is suspended at the source-hosting provider.",
            Reason.SUSPENDED,
            upstream_status=403,
        )


class TokenRefusedError(ProviderError):
    """The provider gives no token for these repositories and permissions."""

    def __init__(self) -> None:
        super().__init__(
            "The source-hosting provider gives no token for this: the installation does not have "
            "the repository, or may not read it.",
            Reason.REFUSED,
            upstream_status=422,
        )
