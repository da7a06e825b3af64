"""Telling the SSH gateway from other callers: it knows the installation's shared token."""

from __future__ import annotations

import hmac

from django.conf import settings
from rest_framework.request import Request

from controlplane.errors import ServiceUnavailable, Unauthorized

HEADER = "x-svc-gateway-token"


def is_gateway(request: Request) -> bool:
    """Tell whether the caller shows the gateway's token; False when it shows none.

    To be asked before the body is looked at. Raises ``ServiceUnavailable``
    (``gateway-token-unset``) when a token is shown and none is set, and ``Unauthorized``
    (``gateway-token-invalid``) for a wrong one, which is compared in constant time.
    """
    shown = request.headers.get(HEADER)
    if shown is None:
        return False
    token = settings.WORKSPACE_SSH_GATEWAY_TOKEN
    if not token:
        raise ServiceUnavailable(
            "No gateway token is set on this installation.", code="gateway-token-unset"
        )
    if not hmac.compare_digest(shown.encode(), token.encode()):
        raise Unauthorized("The gateway token is not the right one.", code="gateway-token-invalid")
    return True
