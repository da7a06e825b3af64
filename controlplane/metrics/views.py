"""``GET /metrics``: the whole installation as Prometheus reads it. No part of the contract."""

from __future__ import annotations

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.viewsets import ViewSet

from controlplane.metrics.exposition import CONTENT_TYPE
from controlplane.metrics.scraping import read_page


class MetricsViewSet(ViewSet):
    """Every number in one answer, whichever process gives it."""

    @extend_schema(exclude=True)
    def retrieve(self, request: Request) -> HttpResponse:
        """Give the page; what cannot be had is left out of it, and named."""
        return HttpResponse(read_page(), content_type=CONTENT_TYPE)
