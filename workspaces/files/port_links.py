"""Making the links that open a port of a workspace in a browser."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.conf import settings

from controlplane.errors import Fault, ServiceUnavailable, ValidationFailed
from controlplane.security.preview_links import TOKEN_PARAMETER, Grant, sign, signing_key

MOST_PORT = 65535


def make_link(*, workspace_id: UUID, port: int, owner: str, path: str) -> dict[str, Any]:
    """Return a link to ``path`` of a port: ``url``, its ``token``, ``expires_at``; nothing is kept.

    Raises ``ValidationFailed`` for what is no port, and ``ServiceUnavailable``: ``previews-off``
    without a domain for previews, ``gateway-token-unset`` without what links are signed with.
    """
    if not 1 <= port <= MOST_PORT:
        detail = f"A port is a number from 1 to {MOST_PORT}."
        raise ValidationFailed([Fault("invalid", detail, parameter="port")])
    if not settings.SVC_PREVIEW_DOMAIN:
        raise ServiceUnavailable(
            "Previews are not configured on this installation.", code="previews-off"
        )
    if not settings.WORKSPACE_SSH_GATEWAY_TOKEN:
        raise ServiceUnavailable(
            "No gateway token is set on this installation.", code="gateway-token-unset"
        )
    until = int(time.time() + settings.SVC_PREVIEW_LINK_MS / 1000)
    grant = Grant(
        kind="link", workspace_id=str(workspace_id), port=port, owner=owner, expires_at=until
    )
    token = sign(grant, signing_key(settings.WORKSPACE_SSH_GATEWAY_TOKEN))
    authority = f"{port}-{workspace_id}.{settings.SVC_PREVIEW_AUTHORITY}"
    joint = "&" if "?" in path else "?"
    return {
        "url": f"{settings.SVC_PREVIEW_SCHEME}://{authority}{path}{joint}{TOKEN_PARAMETER}={token}",
        "token": token,
        "expires_at": datetime.fromtimestamp(until, tz=UTC),
    }
