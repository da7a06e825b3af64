"""Middleware: the request's id, one log line per request, and the body limit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from controlplane.errors import BadRequest, PayloadTooLarge
from controlplane.ids import uuid7
from controlplane.problems import problem_response

log = structlog.get_logger(__name__)

GetResponse = Callable[[HttpRequest], HttpResponse]
SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")


class RequestIdMiddleware:
    """Takes ``x-request-id`` when it is safe, makes one otherwise, and sends it back.

    Binds it to the log lines of the request and logs each request once, when it is answered.
    """

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer ``request`` with its id bound and returned."""
        given = request.headers.get("x-request-id", "")
        request_id = given if SAFE_REQUEST_ID.match(given) else str(uuid7())
        request.request_id = request_id  # type: ignore[attr-defined]
        started = time.perf_counter()
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            response = self.get_response(request)
            log.info(
                "request_answered",
                method=request.method,
                path=request.path,
                status=response.status_code,
                duration_ms=round((time.perf_counter() - started) * 1000, 1),
            )
        response["x-request-id"] = request_id
        return response


class BodyLimitMiddleware:
    """Refuses a body over ``SVC_MAX_BODY_BYTES`` by its announced length, before it is read."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer 413 for what is too large, and whatever the next one says otherwise."""
        announced = request.META.get("CONTENT_LENGTH") or "0"
        if not announced.isdecimal():
            return problem_response(BadRequest("Content-Length is not a number."), request)
        if int(announced) > settings.SVC_MAX_BODY_BYTES:
            limit = settings.SVC_MAX_BODY_BYTES
            return problem_response(
                PayloadTooLarge(f"The body is larger than {limit} bytes."), request
            )
        return self.get_response(request)
