"""Counts and times the answers of the API."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from controlplane.metrics.families import API_ANSWERS, API_SECONDS

GetResponse = Callable[[HttpRequest], HttpResponse]
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
OTHER = "other"
UNMATCHED = "unmatched"
"""The route of what no route answers, whatever its path."""
GROUPS = ("/admin", "/static")
"""Pages of the admin and files of pages, which are one route each."""

_CONVERTER = re.compile(r"<(?:\w+:)?(\w+)>")


class LatencyMiddleware:
    """Observes each answer by method, route template and status."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer ``request`` and count that."""
        started = time.perf_counter()
        status = "500"
        try:
            response = self.get_response(request)
            status = str(response.status_code)
            return response
        finally:
            method = request.method if request.method in METHODS else OTHER
            labels = {"method": method or OTHER, "route": route_of(request)}
            API_SECONDS.observe(time.perf_counter() - started, **labels)
            API_ANSWERS.count(status=status, **labels)


def route_of(request: HttpRequest) -> str:
    """Return the template of the route that took ``request``: ``/v1/runs/{run_id}``, say.

    Never anything of the path that was asked for, of which there are as many as clients want.
    """
    for group in GROUPS:
        if request.path_info == group or request.path_info.startswith(f"{group}/"):
            return group
    match = request.resolver_match
    if match is None:
        return UNMATCHED
    return "/" + _CONVERTER.sub(r"{\1}", match.route)
