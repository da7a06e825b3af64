"""The endpoints that stop, start and delete a workspace."""

from __future__ import annotations

import uuid

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.http.openapi import OWNER_QUERY
from controlplane.http.requests import read
from workspaces.lifecycle.transitions import NewStart, TransitionRequest, ask, start_workspace
from workspaces.models import Sandbox, Transition, Workspace
from workspaces.openapi import (
    ACCEPTED_HEADERS,
    DELETE_DESCRIPTION,
    RESTART_DESCRIPTION,
    STOP_DESCRIPTION,
)
from workspaces.serializers import (
    StartedSandboxSerializer,
    StartSerializer,
    StopSerializer,
    WorkspaceSummarySerializer,
)
from workspaces.views import WorkspaceDetail, accepted, present_workspaces


def _asked(workspace_id: uuid.UUID) -> Response:
    """Answer with the workspace as it stands now; who waits reads it again."""
    rows = Workspace.objects.select_related("latest_sandbox__latest_attempt")
    (members,) = present_workspaces([rows.get(pk=workspace_id)])
    headers = {"Location": f"/v1/workspaces/{workspace_id}"}
    return Response(WorkspaceSummarySerializer(members).data, status=202, headers=headers)


class WorkspaceStop(APIView):
    """Stopping a workspace."""

    @extend_schema(
        operation_id="workspaces.stop",
        tags=["Workspaces"],
        summary="Stop a workspace",
        description=STOP_DESCRIPTION,
        parameters=[OWNER_QUERY, *ACCEPTED_HEADERS[:1]],
        request=StopSerializer,
        responses={202: WorkspaceSummarySerializer},
    )
    def post(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Have a workspace stopped, or its build cancelled."""
        owner = read(request, body=StopSerializer).owner
        ask(
            TransitionRequest(
                workspace_id=workspace_id, kind=Transition.Kind.STOP, owner_user_id=owner
            )
        )
        return _asked(workspace_id)


class WorkspaceStart(APIView):
    """Starting a workspace again."""

    @extend_schema(
        operation_id="workspaces.start",
        tags=["Workspaces"],
        summary="Start a workspace again",
        description=RESTART_DESCRIPTION,
        parameters=[OWNER_QUERY, *ACCEPTED_HEADERS[:1]],
        request=StartSerializer,
        responses={202: StartedSandboxSerializer},
    )
    def post(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Start another attempt of a workspace that has ended."""
        given = read(request, body=StartSerializer)
        relation = given.body.get("relation")
        started = start_workspace(
            NewStart(
                workspace_id=workspace_id,
                owner_user_id=given.owner,
                relation=Sandbox.Relation(relation) if relation else None,
                credentials=given.body.get("credentials"),
            )
        )
        return accepted(started, f"/v1/workspaces/{workspace_id}")


class WorkspaceResource(WorkspaceDetail):
    """One workspace: reading and deleting it."""

    @extend_schema(
        operation_id="workspaces.delete",
        tags=["Workspaces"],
        summary="Delete a workspace",
        description=DELETE_DESCRIPTION,
        parameters=[OWNER_QUERY, *ACCEPTED_HEADERS[:1]],
        responses={202: WorkspaceSummarySerializer},
    )
    def delete(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Have a workspace deleted, whatever it is doing."""
        owner = read(request).owner
        ask(
            TransitionRequest(
                workspace_id=workspace_id, kind=Transition.Kind.DELETE, owner_user_id=owner
            )
        )
        return _asked(workspace_id)
