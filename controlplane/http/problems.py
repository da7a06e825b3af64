"""One body for every failure: ``application/problem+json`` (RFC 9457).

``type title status detail`` are the standard's; ``code`` is stable and documented, ``message``
equals ``detail`` and ``_tag`` is the error's class, for clients that read them, ``errors[]`` says
what is wrong where, ``requestId`` finds the failure in the logs. DRF's exceptions, Django's own
pages and ours all end here.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import structlog
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from rest_framework import exceptions as drf
from rest_framework.views import set_rollback

from controlplane.errors import (
    BadRequest,
    ControlPlaneError,
    Fault,
    NotFound,
    PayloadTooLarge,
    ServiceUnavailable,
    ValidationFailed,
)
from controlplane.http.error_tags import error_tag
from controlplane.http.parsers import escape_pointer

log = structlog.get_logger(__name__)

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:controlplane:problem:"


def problem(error: ControlPlaneError, request_id: str, path: str = "") -> dict[str, Any]:
    """Return the members of the problem body for ``error`` at ``path``."""
    return {
        "_tag": error_tag(path, error.status),
        "type": f"{TYPE_PREFIX}{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "message": error.detail,
        "errors": [fault.to_wire() for fault in error.errors],
        "requestId": request_id,
        **error.members,
    }


def _request_id(request: HttpRequest | None) -> str:
    return getattr(request, "request_id", "") if request is not None else ""


def problem_response(error: ControlPlaneError, request: HttpRequest | None) -> JsonResponse:
    """Return ``error`` as a response outside of DRF (middleware, Django's handlers)."""
    path = request.path_info if request is not None else ""
    body = problem(error, _request_id(request), path)
    return JsonResponse(body, status=error.status, content_type=CONTENT_TYPE, headers=error.headers)


def faults_of(detail: Any, pointer: str = "") -> list[Fault]:
    """Flatten the nested error detail of a DRF ``ValidationError`` into faults with pointers."""
    if isinstance(detail, dict):
        faults = []
        for name, inner in detail.items():
            token = "" if name == "non_field_errors" else f"/{escape_pointer(str(name))}"
            faults += faults_of(inner, pointer + token)
        return faults
    if isinstance(detail, list):
        if all(isinstance(item, str) for item in detail):
            return [
                Fault(str(getattr(item, "code", "invalid")).replace("_", "-"), str(item), pointer)
                for item in detail
            ]
        return [
            fault
            for index, inner in enumerate(detail)
            for fault in faults_of(inner, f"{pointer}/{index}")
        ]
    return [Fault(str(getattr(detail, "code", "invalid")).replace("_", "-"), str(detail), pointer)]


def as_control_plane_error(exc: Exception) -> ControlPlaneError | None:
    """Return the error a client is told for ``exc``; None when it is a fault of our own."""
    if isinstance(exc, ControlPlaneError):
        return exc
    if isinstance(exc, drf.ValidationError):
        return ValidationFailed(faults_of(exc.detail))
    if isinstance(exc, Http404 | drf.NotFound):
        return NotFound("There is nothing at this URL.")
    if isinstance(exc, RequestDataTooBig):
        return PayloadTooLarge("The body is larger than the server accepts.")
    if isinstance(exc, PermissionDenied | SuspiciousOperation | DjangoValidationError):
        return BadRequest("The request could not be parsed.")
    if isinstance(exc, drf.APIException):
        status = HTTPStatus(exc.status_code)
        detail = str(exc.detail)
        if isinstance(exc, drf.UnsupportedMediaType):
            detail += " Send application/json."
        error = ControlPlaneError(detail, code=str(exc.default_code).replace("_", "-"))
        error.status, error.title = status.value, status.phrase.capitalize()
        return error
    if isinstance(exc, OperationalError | InterfaceError):
        # It is down, restarting or out of room: the client may try again, nothing was half done.
        return ServiceUnavailable(
            "The database does not answer at the moment; try again.", code="database-unavailable"
        )
    return None


def exception_handler(exc: Exception, context: dict[str, Any]) -> HttpResponse | None:
    """Turn whatever a view raised into the common body (DRF's ``EXCEPTION_HANDLER``).

    Not a DRF response: the body is the same whatever the view renders otherwise.
    """
    request = context.get("request")
    error = as_control_plane_error(exc)
    if error is None:
        return None  # Django logs the traceback and calls handler500
    set_rollback()
    if isinstance(exc, OperationalError | InterfaceError):
        log.error("database_unavailable", exc_info=exc)
    response = problem_response(error, request)
    wait = getattr(exc, "wait", None)  # of drf.Throttled
    if wait is not None:
        response["Retry-After"] = str(int(wait))
    return response


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's ``handler400``."""
    error = as_control_plane_error(exception)
    return problem_response(error or BadRequest("The request could not be parsed."), request)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's ``handler403``."""
    error = ControlPlaneError("This is not allowed.", code="forbidden")
    error.status, error.title = 403, "Forbidden"
    return problem_response(error, request)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's ``handler404``: unknown routes, and ids that are not UUIDs."""
    return problem_response(NotFound("There is nothing at this URL."), request)


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's ``handler500``: the traceback is in the log under the request's id."""
    return problem_response(
        ControlPlaneError("Something went wrong on our side; look up this requestId in the log."),
        request,
    )
