"""Middleware: the request's id and log line, CORS preflights, the body limit, what pages may do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import structlog
from corsheaders.middleware import CorsMiddleware
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.encoding import escape_uri_path

from controlplane.database.ids import uuid7
from controlplane.errors import BadRequest, PayloadTooLarge, ServiceUnavailable
from controlplane.http.body_limits import body_limit
from controlplane.http.origins import may_be_preview
from controlplane.http.problems import problem_response

log = structlog.get_logger(__name__)

GetResponse = Callable[[HttpRequest], HttpResponse]
MAX_LENGTH_DIGITS = 18
SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")


class RequestIdMiddleware:
    """Takes ``x-request-id`` when it is safe, makes one otherwise, and sends it back.

    Binds it to the log lines of the request, with the ids that the path names, and logs each
    request once, when it is answered.
    """

    BOUND = ("run_id", "job_id", "workspace_id", "sandbox_id")

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer ``request`` with its id bound and returned."""
        given = request.headers.get("x-request-id", "")
        request_id = given if SAFE_REQUEST_ID.match(given) else str(uuid7())
        request.request_id = request_id  # type: ignore[attr-defined]
        started = time.perf_counter()
        before = structlog.contextvars.get_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        try:
            response = self.get_response(request)
            log.info(
                "request_answered",
                method=request.method,
                path=request.path,
                status=response.status_code,
                duration_ms=round((time.perf_counter() - started) * 1000, 1),
            )
        finally:
            # Views bind what they learn, and the thread goes on to the next request.
            structlog.contextvars.clear_contextvars()
            structlog.contextvars.bind_contextvars(**before)
        response["x-request-id"] = request_id
        return response

    def process_view(
        self, request: HttpRequest, view: object, args: object, named: dict[str, object]
    ) -> None:
        """Bind the ids that the path names."""
        ids = {name: str(named[name]) for name in self.BOUND if name in named}
        structlog.contextvars.bind_contextvars(**ids)


class BodyLimitMiddleware:
    """Refuses a body over its path's limit by its announced length, before it is read."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer 413 for what is too large, and whatever the next one says otherwise."""
        announced = request.META.get("CONTENT_LENGTH") or "0"
        if not (announced.isascii() and announced.isdecimal()):
            return problem_response(BadRequest("Content-Length is not a number."), request)
        limit = body_limit(request.path_info)
        # A number of thousands of digits is one that Python refuses to read.
        if len(announced) > MAX_LENGTH_DIGITS or int(announced) > limit:
            return problem_response(
                PayloadTooLarge(f"The body is larger than {limit} bytes."), request
            )
        if getattr(request.META.get("wsgi.input"), "failed", False):
            told = "The service has no room for uploads at the moment; try again later."
            return problem_response(ServiceUnavailable(told, code="upload-disk-full"), request)
        return self.get_response(request)


class PreflightMiddleware(CorsMiddleware):
    """``corsheaders``, answering preflights with 204: there is no content.

    Pages of previews are allowed nothing, whatever ``SVC_CORS_ALLOWED_ORIGINS`` says.
    """

    def is_enabled(self, request: HttpRequest) -> bool:
        """Tell whether CORS is for this path, and this page."""
        if may_be_preview(request.headers.get("origin", "")):
            return False
        return bool(super().is_enabled(request))

    def check_preflight(self, request: HttpRequest) -> HttpResponseBase | None:
        """Return the answer to a preflight; None for every other request."""
        response = super().check_preflight(request)
        if response is None:
            return None
        return HttpResponse(status=204)


class CanonicalLinkMiddleware:
    """Names the place of a page under ``SVC_WEB_URL``, however it was reached, in ``Link``."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer ``request``; a page says where it belongs."""
        response = self.get_response(request)
        is_page = response.headers.get("content-type", "").startswith("text/html")
        if is_page and response.status_code == 200:
            place = settings.SVC_WEB_URL.rstrip("/") + escape_uri_path(request.path)
            response["link"] = f'<{place}>; rel="canonical"'
        return response


class ContentSecurityPolicyMiddleware:
    """Tells browsers that answers are data, and that the pages load nothing from elsewhere.

    A view may widen what its page may run: ``response.page_scripts`` replaces that one directive.
    """

    SCRIPTS = "script-src 'self'"
    PAGES = ("/docs", "/admin")
    PAGE_POLICY = "; ".join(
        (
            "default-src 'none'",
            SCRIPTS,
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )
    DATA_POLICY = "default-src 'none'; frame-ancestors 'none'"

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer ``request`` with the policy of its kind."""
        response = self.get_response(request)
        policy = self.DATA_POLICY
        if request.path_info.startswith(self.PAGES):
            scripts = getattr(response, "page_scripts", self.SCRIPTS)
            policy = self.PAGE_POLICY.replace(self.SCRIPTS, scripts)
        response["content-security-policy"] = policy
        return response
