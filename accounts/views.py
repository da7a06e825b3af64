"""The endpoints of SSH keys."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from accounts.models import SshKey
from accounts.openapi import (
    DELETE_DESCRIPTION,
    REGISTER_DESCRIPTION,
    REGISTER_EXAMPLES,
    RESOLVE_DESCRIPTION,
)
from accounts.serializers import (
    PrincipalRequestSerializer,
    PrincipalSerializer,
    SshKeyRequestSerializer,
    SshKeySerializer,
)
from accounts.services import (
    delete_ssh_key,
    list_ssh_keys,
    register_ssh_key,
    resolve_principal,
)
from controlplane.http.gateway_token import require_gateway
from controlplane.http.openapi import (
    CONFLICTS,
    CREATED_LOCATION,
    GATEWAY_TOKEN_REQUIRED,
    OWNER_QUERY,
    OWNER_REQUIRED,
)
from controlplane.http.pagination import list_query, page
from controlplane.http.requests import read
from controlplane.http.serializers import page_of

SshKeyListQuery = list_query(default=50, maximum=200)
SshKeyPageSerializer = page_of(SshKeySerializer, "SshKeyPageSerializer")


class SshKeyViewSet(ViewSet):
    """SSH keys: registering, listing and deleting them, and finding whose one is."""

    @extend_schema(
        operation_id="sshKeys.list",
        tags=["SSH keys"],
        summary="List an owner's SSH keys, newest first",
        parameters=[OWNER_REQUIRED, SshKeyListQuery],
        responses=SshKeyPageSerializer,
    )
    def list(self, request: Request) -> Response:
        """List an owner's active SSH keys, newest first."""
        given = read(request, query=SshKeyListQuery, owner_required=True)
        rows = list_ssh_keys(owner_user_id=given.required_owner)
        query = given.query
        answer = page(rows, limit=query["limit"], cursor=query.get("cursor"), present=_present)
        return Response(answer)

    @extend_schema(
        operation_id="sshKeys.create",
        tags=["SSH keys"],
        summary="Register an SSH key",
        description=REGISTER_DESCRIPTION,
        parameters=[CREATED_LOCATION],
        examples=REGISTER_EXAMPLES,
        request=SshKeyRequestSerializer,
        responses={201: SshKeySerializer, **CONFLICTS},
    )
    def create(self, request: Request) -> Response:
        """Register a public key to enter workspaces with."""
        given = read(request, body=SshKeyRequestSerializer, owner_required=True)
        key = register_ssh_key(
            owner_user_id=given.required_owner,
            key=given.body["public_key"],
            name=given.body.get("name"),
        )
        headers = {"Location": f"/v1/ssh-keys/{key.pk}"}
        return Response(SshKeySerializer(key).data, status=201, headers=headers)

    @extend_schema(
        operation_id="sshKeys.delete",
        tags=["SSH keys"],
        summary="Delete an SSH key",
        description=DELETE_DESCRIPTION,
        parameters=[OWNER_QUERY],
        responses={200: SshKeySerializer},
    )
    def destroy(self, request: Request, ssh_key_id: uuid.UUID) -> Response:
        """Delete an SSH key and show what it was."""
        key = delete_ssh_key(ssh_key_id, owner_user_id=read(request, by_id=True).owner)
        return Response(SshKeySerializer(key).data)

    @extend_schema(
        operation_id="sshKeys.resolvePrincipal",
        tags=["SSH keys"],
        summary="Tell the SSH gateway whose key this is",
        description=RESOLVE_DESCRIPTION,
        parameters=[GATEWAY_TOKEN_REQUIRED],
        request=PrincipalRequestSerializer,
        responses={200: PrincipalSerializer},
    )
    def resolve_principal(self, request: Request) -> Response:
        """Find the owner of an active key."""
        require_gateway(request)
        given = read(request, body=PrincipalRequestSerializer)
        key = resolve_principal(given.body["public_key_base64"])
        return Response(PrincipalSerializer(key).data)


def _present(rows: Sequence[SshKey]) -> list[Any]:
    return list(SshKeySerializer(rows, many=True).data)
