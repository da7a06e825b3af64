"""``manage.py apireference``: the page of the API, made from its description."""

from __future__ import annotations

import json

from controlplane.http.openapi import document
from controlplane.reference.api_pages import api_page
from controlplane.reference.pages import ReferenceCommand


class Command(ReferenceCommand):
    """Writes or checks ``docs/users/api.md``."""

    help = "Write docs/users/api.md from the description of the API, or check it."
    page = "docs/users/api.md"

    def text(self) -> str:
        """Return the page as it has to be."""
        return api_page(json.loads(document()))
