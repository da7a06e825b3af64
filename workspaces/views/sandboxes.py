"""The endpoints of sandboxes."""

from __future__ import annotations

import uuid

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.http.openapi import CONFLICTS, OWNER_QUERY
from controlplane.http.requests import read
from workspaces.lifecycle.start import start_sandbox
from workspaces.openapi import ACCEPTED_HEADERS, CREATE_EXAMPLES, START_DESCRIPTION
from workspaces.presentation import present_sandbox
from workspaces.queries import get_sandbox
from workspaces.serializers import (
    SandboxRequestSerializer,
    SandboxSerializer,
    StartedSandboxSerializer,
)
from workspaces.views.new_sandboxes import IDEMPOTENCY_KEY, accepted, read_new_sandbox


class SandboxViewSet(ViewSet):
    """Sandboxes: starting and reading them."""

    @extend_schema(
        operation_id="sandboxes.create",
        tags=["Sandboxes"],
        summary="Start a sandbox",
        description=START_DESCRIPTION,
        parameters=[IDEMPOTENCY_KEY, *ACCEPTED_HEADERS],
        examples=CREATE_EXAMPLES,
        request=SandboxRequestSerializer,
        responses={202: StartedSandboxSerializer, **CONFLICTS},
    )
    def create(self, request: Request) -> Response:
        """Start a sandbox."""
        started = start_sandbox(read_new_sandbox(request, SandboxRequestSerializer))
        return accepted(started, f"/v1/sandboxes/{started.answer['sandboxId']}")

    @extend_schema(
        operation_id="sandboxes.get",
        tags=["Sandboxes"],
        summary="Read a sandbox",
        parameters=[OWNER_QUERY],
        responses=SandboxSerializer,
    )
    def retrieve(self, request: Request, sandbox_id: uuid.UUID) -> Response:
        """Show one sandbox, and why it is not ready."""
        sandbox = get_sandbox(sandbox_id, owner_user_id=read(request, by_id=True).owner)
        return Response(SandboxSerializer(present_sandbox(sandbox)).data)
