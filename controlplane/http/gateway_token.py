"""Telling the SSH gateway from other callers: it knows the installation's shared token."""

from __future__ import annotations

import contextlib
import hmac

from django.conf import settings
from django.http import HttpRequest
from rest_framework import serializers
from rest_framework.request import Request

from controlplane.errors import Fault, ServiceUnavailable, Unauthorized, ValidationFailed
from controlplane.http.problems import faults_of
from controlplane.http.serializers import OwnerField

HEADER = "x-svc-gateway-token"
PRINCIPAL_HEADER = "x-svc-principal-id"
RECORD_HEADER = "x-svc-record"
NOT_RECORDED = "none"
"""What a gateway says that announces a session without recording it."""


def is_gateway(request: Request) -> bool:
    """Tell whether the caller shows the gateway's token; False when it shows none.

    To be asked before the body is looked at. Raises ``ServiceUnavailable``
    (``gateway-token-unset``) when a token is shown and none is set, and ``Unauthorized``
    (``gateway-token-invalid``) for a wrong one, which is compared in constant time.
    """
    if HEADER not in request.headers:
        return False
    require_gateway(request)
    return True


def require_gateway(request: Request | HttpRequest) -> None:
    """Refuse everybody but the gateway, before anything else of the request is looked at.

    Raises ``ServiceUnavailable`` (``gateway-token-unset``) when no token is set, and
    ``Unauthorized`` (``gateway-token-invalid``) when it is missing or wrong.
    """
    token = settings.WORKSPACE_SSH_GATEWAY_TOKEN
    if not token:
        raise ServiceUnavailable(
            "No gateway token is set on this installation.", code="gateway-token-unset"
        )
    shown = request.headers.get(HEADER, "")
    if not hmac.compare_digest(shown.encode("utf-8", "replace"), token.encode()):
        raise Unauthorized("The gateway token is wrong.", code="gateway-token-invalid")


def records_sessions(request: Request) -> bool:
    """Tell whether the caller is the gateway and has what it announces recorded.

    Raises as :func:`is_gateway` does.
    """
    return is_gateway(request) and request.headers.get(RECORD_HEADER) != NOT_RECORDED


def principal(request: Request) -> str:
    """Return the owner whose key the gateway has verified, out of ``x-svc-principal-id``.

    Owners may hold any letter; the header is UTF-8. Raises ``Unauthorized``
    (``principal-missing``), and ``ValidationFailed`` for what no owner is called.
    """
    shown = request.headers.get(PRINCIPAL_HEADER, "").strip()
    if not shown:
        detail = f"The header {PRINCIPAL_HEADER} must say for which owner the gateway asks."
        raise Unauthorized(
            detail,
            code="principal-missing",
            errors=[Fault("required", detail, header=PRINCIPAL_HEADER)],
        )
    with contextlib.suppress(UnicodeError):
        shown = shown.encode("latin-1").decode()  # a header's bytes reach us as latin-1
    try:
        owner: str = OwnerField().run_validation(shown)
    except serializers.ValidationError as exc:
        raise ValidationFailed(
            [Fault(f.code, f.detail, header=PRINCIPAL_HEADER) for f in faults_of(exc.detail)]
        ) from exc
    return owner
