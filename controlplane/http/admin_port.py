"""The admin and the metrics at a port of their own, which need not be reached by those of the API.

That port answers everything else too: the admin's pages read the API beside them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from controlplane.errors import NotFound
from controlplane.http.problems import problem_response

_KEPT = re.compile(r"/+(?:admin|metrics)(?:/|\Z)")


class AdminPortMiddleware:
    """Answers 404 to ``/admin`` and ``/metrics`` everywhere but at ``SVC_ADMIN_PORT``, if set."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer ``request`` where it may be asked."""
        port = settings.SVC_ADMIN_PORT
        # The socket's own port: what a client says of it is in HTTP_HOST.
        if port and _KEPT.match(request.path_info) and request.META["SERVER_PORT"] != str(port):
            return problem_response(NotFound("There is nothing at this URL."), request)
        return self.get_response(request)
