"""The WSGI application that gunicorn serves."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def with_chunked_bodies(serve: Application, *, limit: int) -> Application:
    """Let ``serve`` see bodies that were sent in chunks, without a ``Content-Length``.

    Django reads as many bytes as that header says, and none without it. Up to one byte more than
    ``limit`` is read, which tells a body that is too large from one that just fits.
    """

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        chunked = "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()
        if chunked and not environ.get("CONTENT_LENGTH"):
            body = environ["wsgi.input"].read(limit + 1)
            environ["CONTENT_LENGTH"] = str(len(body))
            environ["wsgi.input"] = io.BytesIO(body)
        return serve(environ, start_response)

    return application


application = with_chunked_bodies(get_wsgi_application(), limit=settings.SVC_MAX_BODY_BYTES)
