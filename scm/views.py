"""The endpoints of installations and their repositories."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.http.openapi import OWNER_QUERY, OWNER_REQUIRED
from controlplane.http.pagination import list_query, page
from controlplane.http.requests import read
from controlplane.http.serializers import page_of
from scm import services
from scm.models import Installation, InstallationRepository
from scm.openapi import (
    IMPORT_DESCRIPTION,
    IMPORT_EXAMPLES,
    INSTALLATIONS_DESCRIPTION,
    REPOSITORIES_DESCRIPTION,
    SYNC_DESCRIPTION,
)
from scm.serializers import (
    ImportedInstallationSerializer,
    ImportRequestSerializer,
    InstallationRepositorySerializer,
    InstallationSerializer,
    SearchField,
    SyncedInstallationSerializer,
    SyncRequestSerializer,
)
from scm.services import list_installations, list_repositories, sync_installation

InstallationListQuery = list_query(default=50, maximum=200)
RepositoryListQuery = list_query(default=50, maximum=200, search=SearchField())
InstallationPageSerializer = page_of(InstallationSerializer, "InstallationPage")
InstallationRepositoryPageSerializer = page_of(
    InstallationRepositorySerializer, "InstallationRepositoryPage"
)


class InstallationViewSet(ViewSet):
    """Installations of the app, and their repositories."""

    @extend_schema(
        operation_id="scm.listInstallations",
        tags=["Source hosting"],
        summary="List the installations an owner may use, newest first",
        description=INSTALLATIONS_DESCRIPTION,
        parameters=[OWNER_REQUIRED, InstallationListQuery],
        responses=InstallationPageSerializer,
    )
    def list(self, request: Request) -> Response:
        """List what is active and granted."""
        given = read(request, query=InstallationListQuery, owner_required=True)
        rows = list_installations(owner_user_id=given.required_owner)
        query = given.query
        answer = page(
            rows, limit=query["limit"], cursor=query.get("cursor"), present=_present_installations
        )
        return Response(answer)

    @extend_schema(
        operation_id="scm.listRepositories",
        tags=["Source hosting"],
        summary="List the repositories of an installation, newest first",
        description=REPOSITORIES_DESCRIPTION,
        parameters=[OWNER_REQUIRED, RepositoryListQuery],
        responses=InstallationRepositoryPageSerializer,
    )
    def repositories(self, request: Request, installation_id: uuid.UUID) -> Response:
        """List what was there when the provider was last asked."""
        given = read(request, query=RepositoryListQuery, owner_required=True)
        query = given.query
        rows = list_repositories(
            installation_id, owner_user_id=given.required_owner, search=query.get("search")
        )
        answer = page(
            rows, limit=query["limit"], cursor=query.get("cursor"), present=_present_repositories
        )
        return Response(answer)

    @extend_schema(
        operation_id="scm.importInstallation",
        tags=["Source hosting"],
        summary="Import an installation of the app",
        description=IMPORT_DESCRIPTION,
        examples=IMPORT_EXAMPLES,
        request=ImportRequestSerializer,
        responses=ImportedInstallationSerializer,
    )
    def import_installation(self, request: Request) -> Response:
        """Read it from the provider, and let its first importer hold it."""
        given = read(request, body=ImportRequestSerializer, owner_required=True)
        imported = services.import_installation(
            given.body["external_installation_id"], owner_user_id=given.required_owner
        )
        return Response(ImportedInstallationSerializer(imported).data)

    @extend_schema(
        operation_id="scm.syncInstallation",
        tags=["Source hosting"],
        summary="Read an installation and its repositories again",
        description=SYNC_DESCRIPTION,
        parameters=[OWNER_QUERY],
        request=SyncRequestSerializer,
        responses=SyncedInstallationSerializer,
    )
    def sync(self, request: Request, installation_id: uuid.UUID) -> Response:
        """Ask the provider."""
        given = read(request, body=SyncRequestSerializer, owner_required=True)
        synced = sync_installation(installation_id, owner_user_id=given.required_owner)
        return Response(SyncedInstallationSerializer(synced).data)


def _present_installations(rows: Sequence[Installation]) -> list[Any]:
    return list(InstallationSerializer(rows, many=True).data)


def _present_repositories(rows: Sequence[InstallationRepository]) -> list[Any]:
    return list(InstallationRepositorySerializer(rows, many=True).data)
