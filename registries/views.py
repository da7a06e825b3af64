"""The endpoints of the registry: what is in it now, always asked of itself."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.http.identity import verified_owner
from controlplane.http.requests import read
from registries.openapi import (
    DETAIL_DESCRIPTION,
    EXTENSIONS_DESCRIPTION,
    MANIFEST_DESCRIPTION,
    PING_DESCRIPTION,
    TAGS_DESCRIPTION,
)
from registries.own_repositories import require_own
from registries.serializers import (
    ManifestQuery,
    RegistryExtensionsSerializer,
    RegistryManifestSerializer,
    RegistryPingSerializer,
    RegistrySerializer,
    RegistryTagsSerializer,
    TagListQuery,
)
from registries.services import describe_registry, open_registry, read_manifest


class RegistryViewSet(ViewSet):
    """The registry: how it is configured, and what is in it now."""

    @extend_schema(
        operation_id="registries.get",
        tags=["Registries"],
        summary="Show a registry",
        description=DETAIL_DESCRIPTION,
        responses=RegistrySerializer,
    )
    def retrieve(self, request: Request, registry_id: str) -> Response:
        """Show what is configured."""
        registry = describe_registry(registry_id)
        read(request)
        return Response(RegistrySerializer(registry).data)

    @extend_schema(
        operation_id="registries.ping",
        tags=["Registries"],
        summary="Ask whether a registry answers",
        description=PING_DESCRIPTION,
        responses=RegistryPingSerializer,
    )
    def ping(self, request: Request, registry_id: str) -> Response:
        """Ask it."""
        with open_registry(registry_id) as client:
            read(request)
            client.ping()
        return Response({"name": registry_id, "reachable": True})

    @extend_schema(
        operation_id="registries.extensions",
        tags=["Registries"],
        summary="List a registry's extensions",
        description=EXTENSIONS_DESCRIPTION,
        responses=RegistryExtensionsSerializer,
    )
    def extensions(self, request: Request, registry_id: str) -> Response:
        """Ask which it has."""
        with open_registry(registry_id) as client:
            read(request)
            extensions = client.list_extensions()
        return Response(RegistryExtensionsSerializer({"extensions": extensions}).data)

    @extend_schema(
        operation_id="registries.tags",
        tags=["Registries"],
        summary="List the tags of a repository",
        description=TAGS_DESCRIPTION,
        parameters=[TagListQuery],
        responses=RegistryTagsSerializer,
    )
    def tags(self, request: Request, registry_id: str) -> Response:
        """Ask for all of them."""
        with open_registry(registry_id) as client:
            repository = read(request, query=TagListQuery).query["repository"]
            require_own(registry_id, repository, caller=verified_owner(request))
            tags = client.list_tags(repository) or []
        return Response(RegistryTagsSerializer({"repository": repository, "tags": tags}).data)

    @extend_schema(
        operation_id="registries.manifest",
        tags=["Registries"],
        summary="Show a manifest",
        description=MANIFEST_DESCRIPTION,
        parameters=[ManifestQuery],
        responses=RegistryManifestSerializer,
    )
    def manifest(self, request: Request, registry_id: str) -> Response:
        """Ask for it by tag or digest."""
        with open_registry(registry_id) as client:
            given = read(request, query=ManifestQuery).query
            require_own(registry_id, given["repository"], caller=verified_owner(request))
            manifest = read_manifest(client, **given)
            shown = {
                **given,
                "digest": manifest.digest,
                "content_type": manifest.media_type or None,
                "manifest": manifest.parsed(),
            }
        return Response(RegistryManifestSerializer(shown).data)
