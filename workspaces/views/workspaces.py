"""The endpoints of workspaces."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.database.ids import IdOrder
from controlplane.errors import NotFound
from controlplane.http.gateway_token import principal, require_gateway
from controlplane.http.openapi import (
    CONFLICTS,
    GATEWAY_TOKEN_REQUIRED,
    OWNER_QUERY,
    OWNER_REQUIRED,
    PRINCIPAL,
)
from controlplane.http.pagination import list_query, page
from controlplane.http.requests import Reading, read
from controlplane.http.serializers import page_of
from workspaces.lifecycle.attempt_states import require_ready
from workspaces.lifecycle.start import start_sandbox
from workspaces.lifecycle.time_to_live import change_time_to_live
from workspaces.lifecycle.transitions import (
    NewStart,
    TransitionRequest,
    request_transition,
    start_workspace,
)
from workspaces.models import Sandbox, Transition
from workspaces.openapi import (
    ACCEPTED_HEADERS,
    CREATE_EXAMPLES,
    DELETE_DESCRIPTION,
    RESTART_DESCRIPTION,
    SSH_TARGET_DESCRIPTION,
    STOP_DESCRIPTION,
    TTL_DESCRIPTION,
)
from workspaces.presentation import (
    present_attempts,
    present_events,
    present_renamed,
    present_ssh_target,
    present_workspace,
    present_workspaces,
)
from workspaces.queries import (
    get_workspace_with_latest,
    latest_attempt,
    list_attempts,
    list_events,
    list_workspaces,
)
from workspaces.serializers import (
    AttemptSerializer,
    EventSerializer,
    RenamedSerializer,
    RenameSerializer,
    SshTargetSerializer,
    StartedSandboxSerializer,
    StartSerializer,
    StopSerializer,
    TimeToLiveSerializer,
    WorkspaceRequestSerializer,
    WorkspaceSerializer,
    WorkspaceSummarySerializer,
)
from workspaces.services import rename_workspace
from workspaces.status import WORKSPACE_STATUSES
from workspaces.views.new_sandboxes import IDEMPOTENCY_KEY, accepted, read_new_sandbox

WorkspaceListQuery = list_query(
    default=25,
    maximum=100,
    status=serializers.ChoiceField(choices=WORKSPACE_STATUSES, required=False),
)
AttemptListQuery = list_query(default=25, maximum=100)
EventListQuery = list_query(default=50, maximum=200)
WorkspacePageSerializer = page_of(WorkspaceSummarySerializer, "WorkspacePageSerializer")
AttemptPageSerializer = page_of(AttemptSerializer, "AttemptPageSerializer")
EventPageSerializer = page_of(EventSerializer, "EventPageSerializer")


class WorkspaceViewSet(ViewSet):
    """Workspaces: their life, their attempts and their history."""

    @extend_schema(
        operation_id="workspaces.list",
        tags=["Workspaces"],
        summary="List an owner's workspaces, newest first",
        parameters=[OWNER_REQUIRED, WorkspaceListQuery],
        responses=WorkspacePageSerializer,
    )
    def list(self, request: Request) -> Response:
        """List an owner's workspaces, newest first."""
        given = read(request, query=WorkspaceListQuery, owner_required=True)
        status = given.query.get("status")
        rows, order = list_workspaces(owner_user_id=given.required_owner, status=status)
        return _page(WorkspacePageSerializer, rows, given, present_workspaces, order=order)

    @extend_schema(
        operation_id="workspaces.create",
        tags=["Workspaces"],
        summary="Create a workspace and start its first sandbox",
        description=(
            "As `POST /v1/sandboxes` for a new workspace, with the same problems (409 among them); "
            "poll `GET /v1/workspaces/{workspaceId}`."
        ),
        parameters=[IDEMPOTENCY_KEY, *ACCEPTED_HEADERS],
        examples=CREATE_EXAMPLES,
        request=WorkspaceRequestSerializer,
        responses={202: StartedSandboxSerializer, **CONFLICTS},
    )
    def create(self, request: Request) -> Response:
        """Create a workspace and start its first sandbox."""
        started = start_sandbox(read_new_sandbox(request, WorkspaceRequestSerializer))
        return accepted(started, f"/v1/workspaces/{started.answer['workspaceId']}")

    @extend_schema(
        operation_id="workspaces.get",
        tags=["Workspaces"],
        summary="Read a workspace, and why it is not ready",
        parameters=[OWNER_QUERY],
        responses=WorkspaceSerializer,
    )
    def retrieve(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Show one workspace, and why it is not ready."""
        workspace = get_workspace_with_latest(
            workspace_id, owner_user_id=read(request, by_id=True).owner
        )
        return Response(WorkspaceSerializer(present_workspace(workspace)).data)

    @extend_schema(
        operation_id="workspaces.update",
        tags=["Workspaces"],
        summary="Change when a workspace is stopped automatically",
        description=TTL_DESCRIPTION,
        parameters=[OWNER_QUERY],
        request=TimeToLiveSerializer,
        responses=WorkspaceSummarySerializer,
    )
    def partial_update(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Set how long from now a workspace is stopped."""
        given = read(request, body=TimeToLiveSerializer, by_id=True)
        change_time_to_live(
            workspace_id, owner_user_id=given.owner, ttl_seconds=given.body["ttl_seconds"]
        )
        workspace = get_workspace_with_latest(workspace_id, owner_user_id=given.owner)
        (members,) = present_workspaces([workspace])
        return Response(WorkspaceSummarySerializer(members).data)

    @extend_schema(
        operation_id="workspaces.delete",
        tags=["Workspaces"],
        summary="Delete a workspace",
        description=DELETE_DESCRIPTION,
        parameters=[OWNER_QUERY, *ACCEPTED_HEADERS[:1]],
        responses={202: WorkspaceSummarySerializer},
    )
    def destroy(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Have a workspace deleted, whatever it is doing."""
        owner = read(request, by_id=True).owner
        return _request(workspace_id, Transition.Kind.DELETE, owner)

    @extend_schema(
        operation_id="workspaces.rename",
        tags=["Workspaces"],
        summary="Rename a workspace",
        parameters=[OWNER_QUERY],
        request=RenameSerializer,
        responses=RenamedSerializer,
    )
    def rename(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Rename a workspace."""
        given = read(request, body=RenameSerializer, by_id=True)
        workspace = rename_workspace(
            workspace_id, owner_user_id=given.owner, name=given.body["name"]
        )
        return Response(RenamedSerializer(present_renamed(workspace)).data)

    @extend_schema(
        operation_id="workspaces.stop",
        tags=["Workspaces"],
        summary="Stop a workspace",
        description=STOP_DESCRIPTION,
        parameters=[OWNER_QUERY, *ACCEPTED_HEADERS[:1]],
        request=StopSerializer,
        responses={202: WorkspaceSummarySerializer, **CONFLICTS},
    )
    def stop(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Have a workspace stopped, or its build cancelled."""
        owner = read(request, body=StopSerializer, by_id=True).owner
        return _request(workspace_id, Transition.Kind.STOP, owner)

    @extend_schema(
        operation_id="workspaces.start",
        tags=["Workspaces"],
        summary="Start a workspace again",
        description=RESTART_DESCRIPTION,
        parameters=[OWNER_QUERY, *ACCEPTED_HEADERS[:1]],
        request=StartSerializer,
        responses={202: StartedSandboxSerializer, **CONFLICTS},
    )
    def start(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Start another attempt of a workspace that has ended."""
        given = read(request, body=StartSerializer, by_id=True)
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

    @extend_schema(
        operation_id="workspaces.listAttempts",
        tags=["Workspaces"],
        summary="List the attempts of a workspace, newest first",
        parameters=[OWNER_QUERY, AttemptListQuery],
        responses=AttemptPageSerializer,
    )
    def list_attempts(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """List the attempts of a workspace, newest first."""
        given = read(request, query=AttemptListQuery, by_id=True)
        rows = list_attempts(workspace_id, owner_user_id=given.owner)
        return _page(AttemptPageSerializer, rows, given, present_attempts)

    @extend_schema(
        operation_id="workspaces.listEvents",
        tags=["Workspaces"],
        summary="List the events of a workspace, newest first",
        parameters=[OWNER_QUERY, EventListQuery],
        responses=EventPageSerializer,
    )
    def list_events(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """List the events of a workspace, newest first."""
        given = read(request, query=EventListQuery, by_id=True)
        rows = list_events(workspace_id, owner_user_id=given.owner)
        return _page(EventPageSerializer, rows, given, present_events)

    @extend_schema(
        operation_id="workspaces.getSshTarget",
        tags=["Workspaces"],
        summary="Tell the SSH gateway where a workspace runs",
        description=SSH_TARGET_DESCRIPTION,
        parameters=[GATEWAY_TOKEN_REQUIRED, PRINCIPAL],
        responses={200: SshTargetSerializer, **CONFLICTS},
    )
    def ssh_target(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Show where a workspace that is ready runs, to its owner's gateway session."""
        require_gateway(request)
        owner = principal(request)
        if read(request).owner not in (None, owner):
            raise NotFound("There is no such workspace.", code="workspace-not-found")
        attempt, runtime = require_ready(latest_attempt(workspace_id, owner_user_id=owner))
        return Response(SshTargetSerializer(present_ssh_target(attempt, runtime)).data)


def _page(
    serializer: type[serializers.Serializer[Any]],
    rows: QuerySet[Any],
    given: Reading,
    present: Callable[[Sequence[Any]], Any],
    *,
    order: IdOrder | None = None,
) -> Response:
    limit, cursor = given.query["limit"], given.query.get("cursor")
    answer = page(rows, limit=limit, cursor=cursor, order=order, present=present)
    next_cursor = answer.pop("nextCursor", None)
    return Response(serializer({**answer, "next_cursor": next_cursor}).data)


def _request(workspace_id: uuid.UUID, kind: Transition.Kind, owner: str | None) -> Response:
    """Request a transition, and answer with the workspace; who waits for its end reads it again."""
    request_transition(TransitionRequest(workspace_id=workspace_id, kind=kind, owner_user_id=owner))
    workspace = get_workspace_with_latest(workspace_id, owner_user_id=None)
    (members,) = present_workspaces([workspace])
    headers = {"Location": f"/v1/workspaces/{workspace_id}"}
    return Response(WorkspaceSummarySerializer(members).data, status=202, headers=headers)
