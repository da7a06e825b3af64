"""The endpoints of runs and their records."""

from __future__ import annotations

import uuid

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.http.gateway_token import is_gateway, records_sessions
from controlplane.http.negotiation import asks_for
from controlplane.http.openapi import CONFLICTS, OWNER_QUERY, OWNER_REQUIRED
from controlplane.http.pagination import page
from controlplane.http.requests import read
from controlplane.http.serializers import page_of
from controlplane.http.server_sent_events import LAST_EVENT_ID, STREAM_RESPONSES, StreamParameters
from controlplane.spelling import camel_case
from runs.commands import new_run
from runs.models import Run
from runs.openapi import (
    CREATE_DESCRIPTION,
    CREATE_EXAMPLES,
    EXPORT_DESCRIPTION,
    EXPORT_RESPONSES,
    GATEWAY_TOKEN,
    LOCATION,
    RUN_STREAM_DESCRIPTION,
    SCROLLBACK_DESCRIPTION,
    SCROLLBACK_RESPONSES,
    SEQUENCE,
    STREAM_HEADERS,
    TIMELINE_DESCRIPTION,
    UPDATE_DESCRIPTION,
)
from runs.presentation import (
    BYTES,
    export_lines,
    open_piece,
    present_event,
    present_run,
    present_runs,
    require_scrollback_limit,
    sequence_number,
    timeline_query,
)
from runs.record.reading.change_list import changes as present_changes
from runs.record.reading.export import CONTENT_TYPES
from runs.record.reading.loss import loss as present_loss
from runs.record.reading.timeline import timeline_page
from runs.serializers import (
    ChangesSerializer,
    ExportParameters,
    LossSerializer,
    RunEventSerializer,
    RunListQuery,
    RunRequestSerializer,
    RunSerializer,
    RunUpdateSerializer,
    ScrollbackParameters,
    TimelineParameters,
    TimelineSerializer,
)
from runs.services import (
    Report,
    create_run,
    get_record,
    get_record_number,
    get_run,
    list_runs,
    update_run,
)
from runs.streaming.of_run import stream_run

REPORTED = ("exitCode", "errorMessage", "diff", "changedFiles")

RunPageSerializer = page_of(RunSerializer, "RunPageSerializer")


class RunViewSet(ViewSet):
    """Runs, and what their records hold."""

    @extend_schema(
        operation_id="runs.list",
        tags=["Runs"],
        summary="List an owner's runs, newest first",
        parameters=[OWNER_REQUIRED, RunListQuery],
        responses=RunPageSerializer,
    )
    def list(self, request: Request) -> Response:
        """List an owner's runs, newest first; boot runs only when that mode is asked for."""
        given = read(request, query=RunListQuery, owner_required=True)
        query = given.query
        named = {name: query.get(name) for name in ("workspace_id", "status", "mode")}
        rows, order = list_runs(owner_user_id=given.required_owner, **named)
        limit, cursor = query["limit"], query.get("cursor")
        return Response(page(rows, limit=limit, cursor=cursor, order=order, present=present_runs))

    @extend_schema(
        operation_id="runs.create",
        tags=["Runs"],
        summary="Create a run",
        description=CREATE_DESCRIPTION,
        parameters=[GATEWAY_TOKEN, LOCATION],
        examples=CREATE_EXAMPLES,
        request=RunRequestSerializer,
        responses={201: RunSerializer, **CONFLICTS},
    )
    def create(self, request: Request) -> Response:
        """Create a run, and have it executed when there is something to execute."""
        from_gateway = records_sessions(request)
        given = read(request, body=RunRequestSerializer, owner_required=True)
        run = create_run(
            new_run(
                owner_user_id=given.required_owner, values=given.body, from_gateway=from_gateway
            )
        )
        headers = {"Location": f"/v1/runs/{run.pk}"}
        return Response(present_run(run), status=201, headers=headers)

    @extend_schema(
        operation_id="runs.get",
        tags=["Runs"],
        summary="Read a run",
        parameters=[OWNER_QUERY],
        responses=RunSerializer,
    )
    def retrieve(self, request: Request, run_id: uuid.UUID) -> Response:
        """Show one run."""
        run = get_run(run_id, owner_user_id=read(request, by_id=True).owner)
        return Response(present_run(run))

    @extend_schema(
        operation_id="runs.update",
        tags=["Runs"],
        summary="Cancel a run, or report the state of a run that is not recorded",
        description=UPDATE_DESCRIPTION,
        parameters=[OWNER_QUERY, GATEWAY_TOKEN],
        request=RunUpdateSerializer,
        responses={200: RunSerializer, **CONFLICTS},
    )
    def partial_update(self, request: Request, run_id: uuid.UUID) -> Response:
        """Cancel a run, or report the state of a run that is not recorded."""
        from_gateway = is_gateway(request)
        given = read(request, body=RunUpdateSerializer, by_id=True)
        run = get_run(run_id, owner_user_id=given.owner)
        report = Report(**{**given.body, "status": Run.Status(given.body["status"])})
        named = [name for name in map(camel_case, given.body) if name in REPORTED]
        run = update_run(run, report, named=named, from_gateway=from_gateway)
        return Response(present_run(run))

    @extend_schema(
        operation_id="runs.timeline",
        tags=["Runs"],
        summary="Read the events of a run in order",
        description=TIMELINE_DESCRIPTION,
        parameters=[OWNER_QUERY, TimelineParameters],
        responses=TimelineSerializer,
    )
    def timeline(self, request: Request, run_id: uuid.UUID) -> HttpResponse:
        """Show a page of the timeline."""
        given = read(request, query=TimelineParameters, by_id=True)
        wanted = timeline_query(given.query)
        number = get_record_number(run_id, owner_user_id=given.owner)
        body = timeline_page(run_id, number, wanted)
        return HttpResponse(body, content_type="application/json")

    @extend_schema(
        operation_id="runs.stream",
        tags=["Runs"],
        summary="Follow a run live",
        description=RUN_STREAM_DESCRIPTION,
        parameters=[OWNER_QUERY, StreamParameters, LAST_EVENT_ID],
        responses=STREAM_RESPONSES,
    )
    def stream(self, request: Request, run_id: uuid.UUID) -> HttpResponseBase:
        """Send the events of a run as they are recorded, then its end."""
        given = read(request, query=StreamParameters, by_id=True)
        run = get_run(run_id, owner_user_id=given.owner)
        return stream_run(request, run, given.query.get("after"))

    @extend_schema(
        operation_id="runs.event",
        tags=["Runs"],
        summary="Read one event of a run",
        parameters=[OWNER_QUERY, SEQUENCE],
        responses=RunEventSerializer,
    )
    def event(self, request: Request, run_id: uuid.UUID, sequence: str) -> Response:
        """Show everything that is known of one event, its bytes too."""
        given = read(request, by_id=True)
        number = sequence_number(sequence)
        run = get_run(run_id, owner_user_id=given.owner)
        get_record(run)
        return Response(present_event(run, number))

    @extend_schema(
        operation_id="runs.scrollback",
        tags=["Runs"],
        summary="Read what a process wrote or read, byte for byte",
        description=SCROLLBACK_DESCRIPTION,
        parameters=[OWNER_QUERY, ScrollbackParameters, *STREAM_HEADERS],
        responses=SCROLLBACK_RESPONSES,
    )
    def scrollback(self, request: Request, run_id: uuid.UUID) -> Response | StreamingHttpResponse:
        """Show a piece of a stream, or send all of it."""
        given = read(request, query=ScrollbackParameters, by_id=True)
        raw = asks_for(request, BYTES)
        require_scrollback_limit(given.query, raw=raw)
        run = get_run(run_id, owner_user_id=given.owner)
        get_record(run)
        piece = open_piece(run, given.query)
        if raw:
            return StreamingHttpResponse(piece.bytes(), content_type=BYTES, headers=piece.headers())
        return Response(piece.members(), headers={"Vary": "Accept"})

    @extend_schema(
        operation_id="runs.loss",
        tags=["Runs"],
        summary="Read what is missing from the record of a run",
        parameters=[OWNER_QUERY],
        responses=LossSerializer,
    )
    def loss(self, request: Request, run_id: uuid.UUID) -> Response:
        """Show the losses of a record, and how far it saw what happened."""
        run = get_run(run_id, owner_user_id=read(request, by_id=True).owner)
        return Response(present_loss(run, get_record(run)))

    @extend_schema(
        operation_id="runs.changes",
        tags=["Runs"],
        summary="Read what a run changed in the working tree",
        parameters=[OWNER_QUERY],
        responses=ChangesSerializer,
    )
    def changes(self, request: Request, run_id: uuid.UUID) -> Response:
        """Show the files and the diff of a run; both are empty until it has ended."""
        run = get_run(run_id, owner_user_id=read(request, by_id=True).owner)
        get_record(run)
        return Response(present_changes(run))

    @extend_schema(
        operation_id="runs.export",
        tags=["Runs"],
        summary="Export a record as a file",
        description=EXPORT_DESCRIPTION,
        parameters=[OWNER_QUERY, ExportParameters],
        responses=EXPORT_RESPONSES,
    )
    def export(self, request: Request, run_id: uuid.UUID) -> StreamingHttpResponse:
        """Send the record in the format that is asked for."""
        given = read(request, query=ExportParameters, by_id=True)
        run = get_run(run_id, owner_user_id=given.owner)
        lines = export_lines(run, get_record(run), given.query)
        return StreamingHttpResponse(lines, content_type=CONTENT_TYPES[given.query["format"]])
