"""The endpoints of workspaces and sandboxes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.errors import Fault, NotFound, ValidationFailed
from controlplane.http.gateway_token import principal, require_gateway
from controlplane.http.openapi import GATEWAY_TOKEN_REQUIRED, OWNER_QUERY, OWNER_REQUIRED, PRINCIPAL
from controlplane.http.pagination import list_query, page
from controlplane.http.problems import faults_of
from controlplane.http.requests import examine, read
from controlplane.http.serializers import InputSerializer, TextField, page_of
from workspaces.blueprint import Blueprint
from workspaces.lifecycle.reasons import (
    attempt_members,
    attempt_states,
    require_ready,
    sandbox_members,
    workspace_members,
)
from workspaces.lifecycle.start import NewSandbox, StartedSandbox, start_sandbox
from workspaces.models import Attempt, Sandbox, Workspace, WorkspaceEvent
from workspaces.openapi import (
    ACCEPTED_HEADERS,
    CREATE_EXAMPLES,
    SSH_TARGET_DESCRIPTION,
    START_DESCRIPTION,
)
from workspaces.serializers import (
    AttemptSerializer,
    EventSerializer,
    RenamedSerializer,
    RenameSerializer,
    SandboxRequestSerializer,
    SandboxSerializer,
    SshTargetSerializer,
    StartedSandboxSerializer,
    WorkspaceRequestSerializer,
    WorkspaceSerializer,
    WorkspaceSummarySerializer,
)
from workspaces.services import get_workspace, rename_workspace
from workspaces.status import DELETED, WORKSPACE_STATUSES

IDEMPOTENCY_KEY = OpenApiParameter(
    "idempotency-key",
    str,
    OpenApiParameter.HEADER,
    description=(
        "Repeating a request with the same key gives the first answer again, with the header "
        "`idempotency-replayed: true`. Keys belong to the owner."
    ),
)

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


def _idempotency_key(request: Request) -> tuple[str | None, list[Fault]]:
    if "idempotency-key" not in request.headers:
        return None, []
    try:
        key = TextField(max_length=255).run_validation(request.headers["idempotency-key"])
    except serializers.ValidationError as exc:
        return None, [
            Fault(fault.code, fault.detail, header="idempotency-key")
            for fault in faults_of(exc.detail)
        ]
    return key, []


def _read_intent(request: Request, serializer: type[InputSerializer]) -> NewSandbox:
    """Return what the client asks for; all faults of the request at once, the spec's too."""
    reading = examine(request, body=serializer, owner_required=True)
    key, key_faults = _idempotency_key(request)
    faults = [*reading.faults, *key_faults, *_misplaced_relation(request.data)]
    if faults:
        raise ValidationFailed([*faults, *_spec_faults(request.data)])
    values = reading.body
    default = Sandbox.Relation.REBUILD if values.get("workspace_id") else Sandbox.Relation.LAUNCH
    return NewSandbox(
        owner_user_id=reading.required_owner,
        registry_id=values["registry_id"],
        repository=values["repository"],
        tag=values["tag"],
        spec=values["spec"],
        name=values.get("name"),
        workspace_id=values.get("workspace_id"),
        relation=Sandbox.Relation(values.get("relation", default)),
        source_selection=values.get("source_selection"),
        dotfiles_selection=values.get("dotfiles_selection"),
        credentials=values.get("credentials"),
        ttl_seconds=values.get("ttl_seconds"),
        idempotency_key=key,
        body=dict(request.data),
    )


def _misplaced_relation(body: object) -> list[Fault]:
    if not isinstance(body, dict) or body.get("relation") is None or body.get("workspaceId"):
        return []
    detail = "A relation is to a workspace that exists: name its workspaceId."
    return [Fault("relation-without-workspace", detail, pointer="/relation")]


def _spec_faults(body: object) -> Sequence[Fault]:
    if isinstance(body, dict) and body.get("spec") is not None:
        try:
            Blueprint.parse(body["spec"])
        except ValidationFailed as exc:
            return exc.errors
    return []


def accepted(started: StartedSandbox, location: str) -> Response:
    headers = {"Location": location}
    if started.replayed:
        headers["idempotency-replayed"] = "true"
    body = StartedSandboxSerializer(_by_python_name(started.answer)).data
    return Response(body, status=202, headers=headers)


def _by_python_name(answer: dict[str, Any]) -> dict[str, Any]:
    names = {"sandboxId": "sandbox_id", "workspaceId": "workspace_id", "attemptId": "attempt_id"}
    names |= {"runId": "run_id", "jobId": "job_id", "registryId": "registry_id"}
    return {names.get(name, name): value for name, value in answer.items()}


class SandboxList(APIView):
    """Starting sandboxes."""

    @extend_schema(
        operation_id="sandboxes.create",
        tags=["Sandboxes"],
        summary="Start a sandbox",
        description=START_DESCRIPTION,
        parameters=[IDEMPOTENCY_KEY, *ACCEPTED_HEADERS],
        examples=CREATE_EXAMPLES,
        request=SandboxRequestSerializer,
        responses={202: StartedSandboxSerializer},
    )
    def post(self, request: Request) -> Response:
        """Start a sandbox."""
        started = start_sandbox(_read_intent(request, SandboxRequestSerializer))
        return accepted(started, f"/v1/sandboxes/{started.answer['sandboxId']}")


class SandboxDetail(APIView):
    """One sandbox."""

    @extend_schema(
        operation_id="sandboxes.get",
        tags=["Sandboxes"],
        summary="Read a sandbox",
        parameters=[OWNER_QUERY],
        responses=SandboxSerializer,
    )
    def get(self, request: Request, sandbox_id: uuid.UUID) -> Response:
        """Show one sandbox, and why it is not ready."""
        sandbox = (
            Sandbox.objects.owned_by(read(request).owner)
            .select_related("workspace", "latest_attempt")
            .filter(pk=sandbox_id)
            .first()
        )
        if sandbox is None:
            raise NotFound("There is no such sandbox.", code="sandbox-not-found")
        attempt = sandbox.latest_attempt
        standing = attempt_states([attempt])[attempt.pk] if attempt else None
        return Response(SandboxSerializer(sandbox_members(sandbox, standing)).data)


class WorkspaceList(APIView):
    """Creating and listing workspaces."""

    @extend_schema(
        operation_id="workspaces.create",
        tags=["Workspaces"],
        summary="Create a workspace and start its first sandbox",
        description=(
            "As `POST /v1/sandboxes` for a new workspace, with the same problems; poll "
            "`GET /v1/workspaces/{workspaceId}`."
        ),
        parameters=[IDEMPOTENCY_KEY, *ACCEPTED_HEADERS],
        examples=CREATE_EXAMPLES,
        request=WorkspaceRequestSerializer,
        responses={202: StartedSandboxSerializer},
    )
    def post(self, request: Request) -> Response:
        """Create a workspace and start its first sandbox."""
        started = start_sandbox(_read_intent(request, WorkspaceRequestSerializer))
        return accepted(started, f"/v1/workspaces/{started.answer['workspaceId']}")

    @extend_schema(
        operation_id="workspaces.list",
        tags=["Workspaces"],
        summary="List an owner's workspaces, newest first",
        parameters=[OWNER_REQUIRED, WorkspaceListQuery],
        responses=WorkspacePageSerializer,
    )
    def get(self, request: Request) -> Response:
        """List an owner's workspaces, newest first."""
        reading = read(request, query=WorkspaceListQuery, owner_required=True)
        query = reading.query
        rows = (
            Workspace.objects.owned_by(reading.owner)
            .select_related("latest_sandbox__latest_attempt")
            # A blueprint may be large, and a list shows none.
            .defer("latest_sandbox__spec", "latest_sandbox__latest_attempt__spec")
        )
        if query.get("status") == DELETED:
            rows = rows.filter(deleted_at__isnull=False)
        else:
            rows = rows.filter(deleted_at__isnull=True)
            if "status" in query:
                rows = rows.filter(latest_sandbox__status=query["status"])
        answer = page(
            rows, limit=query["limit"], cursor=query.get("cursor"), present=present_workspaces
        )
        return Response(_shown(WorkspacePageSerializer, answer))


def present_workspaces(rows: Sequence[Workspace]) -> list[Any]:
    attempts = {
        row.pk: row.latest_sandbox.latest_attempt
        for row in rows
        if row.latest_sandbox and row.latest_sandbox.latest_attempt
    }
    found = attempt_states(attempts.values())
    return [
        workspace_members(row, found.get(attempts[row.pk].pk) if row.pk in attempts else None)
        for row in rows
    ]


def _shown(serializer: type[serializers.Serializer[Any]], answer: dict[str, Any]) -> Any:
    cursor = answer.pop("nextCursor", None)
    return serializer({**answer, "next_cursor": cursor}).data


class WorkspaceDetail(APIView):
    """One workspace."""

    @extend_schema(
        operation_id="workspaces.get",
        tags=["Workspaces"],
        summary="Read a workspace, and why it is not ready",
        parameters=[OWNER_QUERY],
        responses=WorkspaceSerializer,
    )
    def get(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Show one workspace, and why it is not ready."""
        workspace = (
            Workspace.objects.owned_by(read(request).owner)
            .select_related("latest_sandbox__latest_attempt")
            .filter(pk=workspace_id)
            .first()
        )
        if workspace is None:
            raise NotFound("There is no such workspace.", code="workspace-not-found")
        (members,) = present_workspaces([workspace])
        sandbox = workspace.latest_sandbox
        members["spec"] = sandbox.spec if sandbox else None
        return Response(WorkspaceSerializer(members).data)


class WorkspaceName(APIView):
    """The name of a workspace."""

    @extend_schema(
        operation_id="workspaces.rename",
        tags=["Workspaces"],
        summary="Rename a workspace",
        parameters=[OWNER_QUERY],
        request=RenameSerializer,
        responses=RenamedSerializer,
    )
    def patch(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Rename a workspace."""
        given = read(request, body=RenameSerializer)
        workspace = rename_workspace(
            workspace_id, owner_user_id=given.owner, name=given.body["name"]
        )
        members = {
            "workspace_id": workspace.pk,
            "name": workspace.name,
            "updated_at": workspace.updated_at,
        }
        return Response(RenamedSerializer(members).data)


class WorkspaceAttempts(APIView):
    """The attempts of a workspace."""

    @extend_schema(
        operation_id="workspaces.listAttempts",
        tags=["Workspaces"],
        summary="List the attempts of a workspace, newest first",
        parameters=[OWNER_QUERY, AttemptListQuery],
        responses=AttemptPageSerializer,
    )
    def get(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """List the attempts of a workspace, newest first."""
        given = read(request, query=AttemptListQuery)
        workspace = get_workspace(workspace_id, owner_user_id=given.owner)
        answer = page(
            Attempt.objects.filter(workspace=workspace),
            limit=given.query["limit"],
            cursor=given.query.get("cursor"),
            present=_present_attempts,
        )
        return Response(_shown(AttemptPageSerializer, answer))


def _present_attempts(rows: Sequence[Attempt]) -> list[Any]:
    found = attempt_states(rows)
    return [attempt_members(found[row.pk]) for row in rows]


class WorkspaceEvents(APIView):
    """The history of a workspace."""

    @extend_schema(
        operation_id="workspaces.listEvents",
        tags=["Workspaces"],
        summary="List what happened to a workspace, newest first",
        parameters=[OWNER_QUERY, EventListQuery],
        responses=EventPageSerializer,
    )
    def get(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """List what happened to a workspace, newest first."""
        given = read(request, query=EventListQuery)
        workspace = get_workspace(workspace_id, owner_user_id=given.owner)
        answer = page(
            WorkspaceEvent.objects.filter(workspace=workspace),
            limit=given.query["limit"],
            cursor=given.query.get("cursor"),
            present=_present_events,
        )
        return Response(_shown(EventPageSerializer, answer))


def _present_events(rows: Sequence[WorkspaceEvent]) -> list[Any]:
    return [
        {
            "event_id": event.pk,
            "workspace_id": event.workspace_id,
            "attempt_id": event.attempt_id,
            "type": event.type,
            "occurred_at": event.occurred_at,
            "message": event.message,
            "data": event.data,
        }
        for event in rows
    ]


class WorkspaceSshTarget(APIView):
    """Where the SSH gateway finds a workspace."""

    @extend_schema(
        operation_id="workspaces.getSshTarget",
        tags=["Workspaces"],
        summary="Tell the SSH gateway where a workspace runs",
        description=SSH_TARGET_DESCRIPTION,
        parameters=[GATEWAY_TOKEN_REQUIRED, PRINCIPAL],
        responses=SshTargetSerializer,
    )
    def get(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Show where a workspace that is ready runs, to its owner's gateway session."""
        require_gateway(request)
        owner = principal(request)
        if read(request).owner not in (None, owner):
            raise NotFound("There is no such workspace.", code="workspace-not-found")
        workspace = get_workspace(workspace_id, owner_user_id=owner)
        latest = Attempt.objects.filter(workspace=workspace).order_by("-pk").first()
        attempt, runtime = require_ready(latest)
        members = {
            "workspace_id": workspace.pk,
            "attempt_id": attempt.pk,
            "runtime": runtime,
            "working_directory": attempt.spec.get("runtime", {}).get("workingDirectory"),
        }
        return Response(SshTargetSerializer(members).data)
