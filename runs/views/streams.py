"""The endpoints that follow more than one run: a workspace, and all workspaces of an owner."""

from __future__ import annotations

import uuid

from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.viewsets import ViewSet

from controlplane.http.openapi import OWNER_QUERY, OWNER_REQUIRED
from controlplane.http.requests import read
from controlplane.http.server_sent_events import (
    ENDLESS_RESPONSES,
    LAST_EVENT_ID,
    STREAM_RESPONSES,
    StreamParameters,
)
from runs.openapi import OWNER_STREAM_DESCRIPTION, WORKSPACE_STREAM_DESCRIPTION
from runs.streaming.of_owner import stream_owner
from runs.streaming.of_workspace import stream_workspace


class StreamViewSet(ViewSet):
    """Streams of workspaces and owners."""

    @extend_schema(
        operation_id="workspaces.stream",
        tags=["Workspaces"],
        summary="Follow a workspace live",
        description=WORKSPACE_STREAM_DESCRIPTION,
        parameters=[OWNER_QUERY, StreamParameters, LAST_EVENT_ID],
        responses=STREAM_RESPONSES,
    )
    def workspace(self, request: Request, workspace_id: uuid.UUID) -> HttpResponseBase:
        """Send how a workspace stands, what happens to it, and what its build prints."""
        given = read(request, query=StreamParameters, by_id=True)
        return stream_workspace(
            request, workspace_id, owner_user_id=given.owner, after=given.query.get("after")
        )

    @extend_schema(
        operation_id="workspaces.streamAll",
        tags=["Workspaces"],
        summary="Follow all workspaces of an owner live",
        description=OWNER_STREAM_DESCRIPTION,
        parameters=[OWNER_REQUIRED, StreamParameters, LAST_EVENT_ID],
        responses=ENDLESS_RESPONSES,
    )
    def owner(self, request: Request) -> HttpResponseBase:
        """Send how the workspaces of an owner stand, and what happens to them."""
        given = read(request, query=StreamParameters, owner_required=True)
        return stream_owner(request, given.required_owner, given.query.get("after"))
