"""What the facade may be told. The rest of it knows nothing of Django."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PURPOSE = b"access to sandboxes through the E2B facade"


@dataclass(frozen=True, slots=True, kw_only=True)
class FacadeSettings:
    """The settings; ``deploy/README.md``, "E2B facade", explains them."""

    host: str
    port: int
    api_base_url: str
    secret: str
    """What tokens of sandboxes are made with; API and gateways share it."""
    owner: str
    """Whose everything is, without a proxy that says for whom it asks."""
    owner_header: str
    trusts: Callable[[str], bool]
    """Whether an address is one of a proxy that may say for whom it asks."""
    answers_to: Callable[[str], bool]
    """Whether a name (of the header ``Host``) is one of ours."""
    registry: str
    templates: Path | None
    """The folder with a blueprint for each template; None when there is none."""
    ports_domain: str
    """Below which ports of sandboxes are shown; empty when they are not."""
    max_file_bytes: int
    drain: float
    """How many seconds calls that are under way are given at the end."""

    @property
    def key(self) -> bytes:
        """The key for the tokens of sandboxes; it opens nothing else."""
        return hmac.digest(self.secret.encode(), _PURPOSE, "sha256")


def configured() -> FacadeSettings:
    """Return what Django's settings say."""
    from django.conf import settings
    from django.http.request import validate_host

    from controlplane.security.addresses import is_trusted_proxy

    return FacadeSettings(
        host=settings.SVC_BIND_HOST,
        port=settings.SVC_E2B_PORT,
        api_base_url=settings.SSH_GATEWAY_API_BASE_URL.rstrip("/"),
        secret=settings.WORKSPACE_SSH_GATEWAY_TOKEN,
        owner=settings.SVC_E2B_OWNER,
        owner_header=settings.SVC_TRUSTED_OWNER_HEADER.lower(),
        trusts=is_trusted_proxy,
        answers_to=lambda name: validate_host(name, settings.ALLOWED_HOSTS),
        registry=settings.REGISTRY_NAME,
        templates=Path(settings.SVC_E2B_TEMPLATES_DIR) if settings.SVC_E2B_TEMPLATES_DIR else None,
        ports_domain=settings.SVC_PREVIEW_AUTHORITY if settings.SVC_PREVIEW_DOMAIN else "",
        max_file_bytes=settings.SVC_MAX_FILE_BYTES,
        drain=settings.SSH_GATEWAY_DRAIN_MS / 1000,
    )
