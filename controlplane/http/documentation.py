"""The page that shows the description of the API."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from drf_spectacular.views import SpectacularSwaggerSplitView


class DocumentationView(SpectacularSwaggerSplitView):
    """``GET /docs``. It is a page, and its other answers are not made from the page's template."""

    url_name = "openapi"
    template_name = "controlplane/docs.html"

    def options(  # type: ignore[override]  # a plain response, as the page has no renderer for it
        self, request: HttpRequest, *args: object, **kwargs: object
    ) -> HttpResponse:
        """Answer with ``Allow`` and no content."""
        return HttpResponse()
