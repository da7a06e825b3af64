"""The WSGI application that gunicorn serves."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import IO, Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application

from controlplane.http.body_limits import body_limit
from controlplane.http.spooled_body import SpooledBody

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

DISCARDED_BYTES = 64 * 1024 * 1024
"""Whoever sends more is cut off."""

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def with_bounded_bodies(serve: Application, *, limit_of: Callable[[str], int]) -> Application:
    """Let ``serve`` see bodies sent in chunks, and clients see the answer to one too large.

    Django reads as many bytes as ``Content-Length`` says, and none without it: a body in chunks is
    read here, up to one byte more than the limit of its path, which is enough to refuse it.

    Most clients send all of a body before they read the answer, and find a broken connection when
    nobody takes it. What is over the limit is therefore taken and thrown away, within reason.
    """

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        limit = limit_of(environ.get("PATH_INFO", ""))
        chunked = "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()
        announced = environ.get("CONTENT_LENGTH") or ""
        if chunked and not announced:
            body = environ["wsgi.input"]
            if not isinstance(body, SpooledBody):
                body = body.read(limit + 1)
                if len(body) > limit:
                    _discard(environ["wsgi.input"])
                environ["wsgi.input"] = io.BytesIO(body)
            environ["CONTENT_LENGTH"] = str(len(body))
        elif announced.isdecimal() and len(announced) < 12 and int(announced) > limit:
            _discard(environ["wsgi.input"])
        return serve(environ, start_response)

    return application


def _discard(body: IO[bytes]) -> None:
    """Read what a client still sends, up to ``DISCARDED_BYTES``."""
    left = DISCARDED_BYTES
    while left > 0 and (data := body.read(min(left, 65536))):
        left -= len(data)


application = with_bounded_bodies(get_wsgi_application(), limit_of=body_limit)

# The first request would wait for all views otherwise.
import_module(settings.ROOT_URLCONF)
