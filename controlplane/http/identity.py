"""Who calls: the owner whom an authenticating proxy names in a header, where there is one.

With ``SVC_TRUSTED_OWNER_HEADER`` set, everything below ``/v1`` is done for that owner and nobody
else: :class:`OwnerIdentityMiddleware` refuses requests that name no caller before any view sees
them, and ``controlplane.http.requests`` holds every owner that a request says against the caller.
The header counts only when it comes from one of ``SVC_TRUSTED_PROXIES``; from elsewhere it is as
absent. The SSH gateway, which is behind no proxy, shows its token instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from rest_framework import serializers

from controlplane.errors import ControlPlaneError, Fault, Unauthorized, ValidationFailed
from controlplane.http.gateway_token import HEADER as GATEWAY_HEADER
from controlplane.http.gateway_token import require_gateway
from controlplane.http.problems import faults_of, problem_response
from controlplane.http.serializers import OwnerField
from controlplane.security.addresses import is_trusted_proxy

log = structlog.get_logger(__name__)

GetResponse = Callable[[HttpRequest], HttpResponse]

GUARDED: Final = "/v1/"
OPEN_PATHS: Final = frozenset({"/v1/system/setup-state", "/v1/scm/webhooks"})
"""What needs no caller: the state of the set-up, and deliveries, which the provider signs."""

_ID: Final = "[0-9a-f-]{36}"
GATEWAY_CALLS: Final = tuple(
    (method, re.compile(rf"/v1/{path}\Z"))
    for method, path in (
        ("POST", "ssh-keys/resolve-principal"),
        ("GET", f"workspaces/{_ID}/ssh-target"),
        ("POST", "runs"),
        ("GET", f"runs/{_ID}"),
        ("PATCH", f"runs/{_ID}"),
    )
)
"""What the SSH gateway asks for its visitors; elsewhere its token opens nothing."""


class OwnerIdentityMiddleware:
    """Notes for whom a request is made, and refuses it when nobody trustworthy says so."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer 401 or 400 to who is not identified, and whatever the next one says otherwise."""
        try:
            owner = _identify(request)
        except ControlPlaneError as error:
            log.warning("caller_refused", code=error.code, address=request.META.get("REMOTE_ADDR"))
            return problem_response(error, request)
        request.verified_owner = owner  # type: ignore[attr-defined]
        return self.get_response(request)


def verified_owner(request: object) -> str | None:
    """Return the owner whom the proxy has named; None for the gateway, and without such a proxy.

    ``request`` is Django's or REST framework's. Raises ``AttributeError`` for one that did not come
    through the middleware while an identity is required.
    """
    if not settings.SVC_TRUSTED_OWNER_HEADER:
        return None
    owner: str | None = request.verified_owner  # type: ignore[attr-defined]
    return owner


def _identify(request: HttpRequest) -> str | None:
    """Return the caller; None where none is needed. Raises ``Unauthorized`` and the like."""
    name = settings.SVC_TRUSTED_OWNER_HEADER
    path = request.path_info
    if not name or not path.startswith(GUARDED) or path in OPEN_PATHS:
        return None
    if GATEWAY_HEADER in request.headers and _is_gateway_call(request):
        require_gateway(request)
        return None
    shown = request.headers.get(name)
    if shown is None or not is_trusted_proxy(request.META.get("REMOTE_ADDR", "")):
        raise Unauthorized(
            "The request names no owner: send it through the proxy that authenticates users.",
            code="caller-missing",
        )
    return _owner_of(shown, name)


def _is_gateway_call(request: HttpRequest) -> bool:
    return any(
        request.method == method and path.match(request.path_info) for method, path in GATEWAY_CALLS
    )


def _owner_of(shown: str, name: str) -> str:
    """Return the owner that a header's text names; raise ``ValidationFailed``.

    A header that comes twice reaches us joined with a comma, so none may have one.
    """
    text = shown.strip()
    try:
        text = text.encode("latin-1").decode()  # a header's bytes reach us as latin-1
        if "," in text:
            detail = "It is given twice, or contains a comma, which owner names may not."
            raise ValidationFailed([Fault("repeated-header", detail, header=name)])
        owner: str = OwnerField().run_validation(text)
    except UnicodeError as exc:
        fault = Fault("malformed-text", "It is not UTF-8.", header=name)
        raise ValidationFailed([fault]) from exc
    except serializers.ValidationError as exc:
        faults = [Fault(f.code, f.detail, header=name) for f in faults_of(exc.detail)]
        raise ValidationFailed(faults) from exc
    return owner
