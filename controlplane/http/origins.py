"""Which hosts this service answers as, and which web pages may change something.

Nobody is authenticated, so a page that somebody merely looks at must not be able to act in their
place. A browser says on every write, and on every handshake of a WebSocket, which page it comes
from (``Origin``, ``Sec-Fetch-Site``); other clients do not, and are not asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit

import structlog
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.utils.http import is_same_domain

from controlplane.errors import BadRequest, Forbidden
from controlplane.http.problems import problem_response

log = structlog.get_logger(__name__)

GetResponse = Callable[[HttpRequest], HttpResponse]
READS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class HostMiddleware:
    """Refuses requests to a host name that is not ours: a page may point a name of its own here."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer 400 to a foreign ``Host``, and whatever the next one says otherwise."""
        try:
            request.get_host()
        except DisallowedHost:
            log.warning("host_refused", host=request.META.get("HTTP_HOST", "")[:255])
            error = BadRequest(
                "This service does not answer to that host name; SVC_ALLOWED_HOSTS lists the ones "
                "it answers to.",
                code="host-not-allowed",
            )
            return problem_response(error, request)
        return self.get_response(request)


class OriginMiddleware:
    """Refuses writes and upgrades of pages that are neither our own nor trusted.

    Whatever CORS allows them.
    """

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer 403 to a foreign page's write, and whatever the next one says otherwise."""
        # What is upgraded takes input, whatever its method is; a browser asks no page's leave.
        reads = request.method in READS and "upgrade" not in request.headers
        if reads or _may_write(request):
            return self.get_response(request)
        log.warning("origin_refused", origin=request.headers.get("origin", "")[:255])
        error = Forbidden(
            "Pages of this origin may not change anything here; SVC_WEB_TRUSTED_ORIGINS lists "
            "those that may.",
            code="origin-not-trusted",
        )
        return problem_response(error, request)


def _may_write(request: HttpRequest) -> bool:
    """Tell whether no page sent ``request``, or one that may."""
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site") != "cross-site"
    if may_be_preview(origin):
        return False
    # The host was checked before: a page cannot give itself one of our names.
    own = {f"{request.scheme}://{request.get_host()}", origin_of(settings.SVC_WEB_URL)}
    return origin in own or any(_covers(each, origin) for each in settings.CSRF_TRUSTED_ORIGINS)


def origin_of(url: str) -> str:
    """Return scheme, host and port of ``url`` as a browser writes them in ``Origin``."""
    parts = urlsplit(url)
    customary = {"http": 80, "https": 443}.get(parts.scheme)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    place = host if parts.port in (None, customary) else f"{host}:{parts.port}"
    return f"{parts.scheme}://{place}"


_PREVIEW_LABEL = re.compile(r"\d{1,5}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def may_be_preview(origin: str) -> bool:
    """Tell whether a page of ``origin`` may come from a workspace: whoever works there writes it.

    A page of a preview can make itself one of no origin (``null``), such as a frame in a sandbox.
    """
    if origin.strip().lower() == "null":
        return True
    host = origin.partition("://")[2].lower().rpartition("@")[2]
    host = re.sub(r":\d*\Z", "", host).rstrip(".")
    domain = settings.SVC_PREVIEW_DOMAIN.partition(":")[0]
    label, _, rest = host.partition(".")
    return bool(domain) and rest == domain and _PREVIEW_LABEL.fullmatch(label) is not None


def _covers(trusted: str, origin: str) -> bool:
    """Tell whether ``trusted``, which may be like ``https://*.example``, means ``origin``."""
    scheme, _, place = trusted.partition("://")
    if not place.startswith("*."):
        return origin_of(trusted) == origin
    given_scheme, _, given_place = origin.partition("://")
    return scheme == given_scheme and is_same_domain(given_place, place.removeprefix("*"))
