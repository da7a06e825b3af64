"""What the preview gateway may be told. The rest of it knows nothing of Django."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from controlplane.security.preview_links import signing_key


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewSettings:
    """The settings, times in seconds; ``deploy/README.md``, "Preview gateway", explains them."""

    host: str
    port: int
    domain: str
    """Without a port; what stands before it names workspace and port."""
    authority: str
    """The domain with the port that browsers use, when that is not the usual one."""
    scheme: str
    api_base_url: str
    token: str
    docker_host: str
    engines: Path = Path("/nonexistent")
    """The folder of the engines besides that one."""
    owner_header: str
    """Which header an authenticating proxy sets; it is none of the workspace's business."""
    trusts: Callable[[str], bool]
    """Whether an address is one of a proxy that may say for whom it asks."""
    cookie: float
    """How long a browser that has opened a link may come back."""
    max_connections: int
    """To the ports of one workspace at once."""
    max_unadmitted: int
    """Connections at once that have not shown a valid link yet."""
    max_unadmitted_per_address: int
    drain: float
    idle: float = 75.0
    """How long a client's connection may wait for its next request."""
    head: float = 30.0
    """How long the head of a request may take."""
    stall: float = 120.0
    """How long a client may take for the next piece of a body, and either side to accept one."""
    answer: float = 600.0
    """How long a server may take until its answer begins, and for each further piece of it."""

    @property
    def key(self) -> bytes:
        """What links are signed with."""
        return signing_key(self.token)

    @property
    def secure(self) -> bool:
        """Whether browsers come over TLS."""
        return self.scheme == "https"


def configured() -> PreviewSettings:
    """Return what Django's settings say."""
    from django.conf import settings

    from controlplane.security.addresses import is_trusted_proxy

    return PreviewSettings(
        host=settings.SVC_BIND_HOST,
        port=settings.SVC_PREVIEW_PORT,
        domain=settings.SVC_PREVIEW_DOMAIN.partition(":")[0],
        authority=settings.SVC_PREVIEW_AUTHORITY,
        scheme=settings.SVC_PREVIEW_SCHEME,
        api_base_url=settings.SSH_GATEWAY_API_BASE_URL.rstrip("/"),
        token=settings.WORKSPACE_SSH_GATEWAY_TOKEN,
        docker_host=settings.DOCKER_HOST,
        engines=settings.SVC_DATA_DIR / "engines",
        owner_header=settings.SVC_TRUSTED_OWNER_HEADER.lower(),
        trusts=is_trusted_proxy,
        cookie=settings.SVC_PREVIEW_COOKIE_MS / 1000,
        max_connections=settings.SVC_PREVIEW_MAX_CONNECTIONS,
        max_unadmitted=settings.SVC_PREVIEW_MAX_UNADMITTED,
        max_unadmitted_per_address=settings.SVC_PREVIEW_MAX_UNADMITTED_PER_ADDRESS,
        drain=settings.SSH_GATEWAY_DRAIN_MS / 1000,
    )
