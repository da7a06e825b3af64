"""``manage.py apireference``: the page of the API, made from its description."""

from __future__ import annotations

import json

from controlplane.api_reference import api_page
from controlplane.openapi import document
from controlplane.reference_pages import ReferenceCommand


class Command(ReferenceCommand):
    """Writes or checks ``docs/users/api.md``."""

    help = "Write docs/users/api.md from the description of the API, or check it."
    page = "docs/users/api.md"

    def text(self) -> str:
        """Return the page as it has to be."""
        return api_page(json.loads(document()))
