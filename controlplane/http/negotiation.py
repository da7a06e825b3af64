"""What is negotiated with a client, which is next to nothing: JSON in, JSON out.

Where an answer can also be raw bytes, a client asks for them by name (:func:`asks_for`).
"""

from __future__ import annotations

from typing import Any

from rest_framework.metadata import BaseMetadata
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request


class JsonOnly(BaseContentNegotiation):
    """Answers JSON whatever ``Accept`` says, and reads bodies that say that they are JSON.

    A client that accepts nothing we have is better served by an answer than by a 406. A body has
    to have the type: any web page may send one without it, and the browser asks nobody first.
    """

    def select_parser(self, request: Request, parsers: Any) -> BaseParser | None:
        """Return the parser of the body's type; None, which becomes a 415, when there is none."""
        given = request.content_type.partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == given), None)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """Return the view's first renderer."""
        return renderers[0], renderers[0].media_type


def asks_for(request: Request, media_type: str) -> bool:
    """Tell whether ``Accept`` names ``media_type``, and rather than JSON.

    A wildcard asks for nothing in particular, and gets JSON.
    """
    qualities: dict[str, float] = {}
    for part in request.headers.get("accept", "").lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        weights = [piece[2:] for piece in parameters if piece.startswith("q=")]
        try:
            qualities[name] = float(weights[0]) if weights else 1.0
        except ValueError:
            qualities[name] = 0.0
    wanted = qualities.get(media_type, 0.0)
    return wanted > 0 and wanted >= qualities.get("application/json", 0.0)


class NoMetadata(BaseMetadata):
    """``OPTIONS`` answers with ``Allow`` and no content: the description is ``/openapi.json``."""

    def determine_metadata(self, request: Request, view: Any) -> None:
        """Say nothing."""
