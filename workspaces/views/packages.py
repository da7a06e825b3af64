"""The endpoint that resolves one package."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.http.requests import read
from workspaces.packages.lookup import look_up
from workspaces.packages.openapi import RESOLVE_DESCRIPTION
from workspaces.packages.serializers import PackageQuery, PackageResolutionSerializer


class PackageViewSet(ViewSet):
    """What a name means in a distribution."""

    @extend_schema(
        operation_id="packages.resolve",
        tags=["Packages"],
        summary="Resolve a package",
        description=RESOLVE_DESCRIPTION,
        parameters=[PackageQuery],
        responses=PackageResolutionSerializer,
    )
    def resolve(self, request: Request) -> Response:
        """Resolve it."""
        asked = read(request, query=PackageQuery).query
        answer = look_up(asked["query"], asked["target_os"])
        return Response(PackageResolutionSerializer(answer).data)
