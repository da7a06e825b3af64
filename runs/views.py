"""The endpoints of runs and their records."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.errors import Fault, NotFound, ValidationFailed
from controlplane.http.gateway_token import is_gateway
from controlplane.http.negotiation import asks_for
from controlplane.http.openapi import OWNER_QUERY, OWNER_REQUIRED
from controlplane.http.pagination import page
from controlplane.http.requests import read
from controlplane.http.serializers import page_of
from runs.agent.record.frames import Stream
from runs.commands import new_run
from runs.fields import INT64_MAX, STREAM_NUMBERS, OffsetField
from runs.models import Run, RunProcess
from runs.openapi import (
    CREATE_DESCRIPTION,
    CREATE_EXAMPLES,
    EXPORT_DESCRIPTION,
    EXPORT_RESPONSES,
    GATEWAY_TOKEN,
    LOCATION,
    SCROLLBACK_DESCRIPTION,
    SCROLLBACK_RESPONSES,
    SEQUENCE,
    STREAM_HEADERS,
    TIMELINE_DESCRIPTION,
    UPDATE_DESCRIPTION,
)
from runs.record.reading import export
from runs.record.reading.change_list import changes
from runs.record.reading.loss import loss
from runs.record.reading.scrollback import StreamView, open_stream, scrollback
from runs.record.reading.timeline import TimelineQuery, raw_event, timeline_page
from runs.serializers import (
    SCROLLBACK_BYTES,
    SCROLLBACK_MAX_BYTES,
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
    begin_session,
    create_run,
    get_record,
    get_record_number,
    get_run,
    refuse_report,
    refused_transition,
    request_cancel,
    update_reported,
)

BYTES = "application/octet-stream"
SHOWN_RANGES = 100
SHOWN_PROCESSES = 50

RunPageSerializer = page_of(RunSerializer, "RunPageSerializer")


class RunList(APIView):
    """Creating and listing runs."""

    @extend_schema(
        operation_id="runs.create",
        tags=["Runs"],
        summary="Create a run",
        description=CREATE_DESCRIPTION,
        parameters=[GATEWAY_TOKEN, LOCATION],
        examples=CREATE_EXAMPLES,
        request=RunRequestSerializer,
        responses={201: RunSerializer},
    )
    def post(self, request: Request) -> Response:
        """Create a run, and have it executed when there is something to execute."""
        from_gateway = is_gateway(request)
        given = read(request, body=RunRequestSerializer, owner_required=True)
        intent = new_run(
            owner_user_id=given.required_owner, values=given.body, from_gateway=from_gateway
        )
        run = create_run(intent)
        headers = {"Location": f"/v1/runs/{run.pk}"}
        return Response(RunSerializer(run).data, status=201, headers=headers)

    @extend_schema(
        operation_id="runs.list",
        tags=["Runs"],
        summary="List an owner's runs, newest first",
        parameters=[OWNER_REQUIRED, RunListQuery],
        responses=RunPageSerializer,
    )
    def get(self, request: Request) -> Response:
        """List an owner's runs, boot runs too, newest first."""
        given = read(request, query=RunListQuery, owner_required=True)
        query = given.query
        rows = Run.objects.owned_by(given.owner)
        rows = rows.filter(
            **{name: query[name] for name in ("workspace_id", "status") if name in query}
        )
        answer = page(rows, limit=query["limit"], cursor=query.get("cursor"), present=_present_runs)
        return Response(answer)


def _present_runs(rows: Sequence[Run]) -> list[Any]:
    return list(RunSerializer(rows, many=True).data)


class RunDetail(APIView):
    """One run."""

    @extend_schema(
        operation_id="runs.get",
        tags=["Runs"],
        summary="Read a run",
        parameters=[OWNER_QUERY],
        responses=RunSerializer,
    )
    def get(self, request: Request, run_id: uuid.UUID) -> Response:
        """Show one run."""
        run = get_run(run_id, owner_user_id=read(request).owner)
        return Response(RunSerializer(run).data)

    @extend_schema(
        operation_id="runs.update",
        tags=["Runs"],
        summary="Cancel a run, or report of one that is not recorded",
        description=UPDATE_DESCRIPTION,
        parameters=[OWNER_QUERY, GATEWAY_TOKEN],
        request=RunUpdateSerializer,
        responses=RunSerializer,
    )
    def patch(self, request: Request, run_id: uuid.UUID) -> Response:
        """Cancel a run, or report of one that is not recorded."""
        from_gateway = is_gateway(request)
        given = read(request, body=RunUpdateSerializer)
        run = get_run(run_id, owner_user_id=given.owner)
        report = Report(**{**given.body, "status": Run.Status(given.body["status"])})
        refuse_report(run, report.status, [name for name in request.data if name in REPORTED])
        if not run.recorded:
            run = update_reported(run, report)
        elif report.status == Run.Status.CANCELLED:
            run = request_cancel(run)
        elif report.status == Run.Status.RUNNING and from_gateway:
            run = begin_session(run)
        else:
            raise refused_transition(run, report.status)
        return Response(RunSerializer(run).data)


REPORTED = ("exitCode", "errorMessage", "diff", "changedFiles")


class RunTimeline(APIView):
    """The events of a run in order."""

    @extend_schema(
        operation_id="runs.timeline",
        tags=["Runs"],
        summary="Read the events of a run in order",
        description=TIMELINE_DESCRIPTION,
        parameters=[OWNER_QUERY, TimelineParameters],
        responses=TimelineSerializer,
    )
    def get(self, request: Request, run_id: uuid.UUID) -> HttpResponse:
        """Show a page of the timeline."""
        given = read(request, query=TimelineParameters)
        query = given.query
        last = query.get("to_sequence", INT64_MAX)
        if last < query["from_sequence"]:
            detail = "It is below fromSequence."
            raise ValidationFailed([Fault("range-reversed", detail, parameter="toSequence")])
        number = get_record_number(run_id, owner_user_id=given.owner)
        wanted = TimelineQuery(query["from_sequence"], last, query["limit"], query.get("kinds"))
        body = timeline_page(run_id, number, wanted)
        return HttpResponse(body, content_type="application/json")


class RunEventDetail(APIView):
    """One event of a run."""

    @extend_schema(
        operation_id="runs.event",
        tags=["Runs"],
        summary="Read one event of a run",
        parameters=[OWNER_QUERY, SEQUENCE],
        responses=RunEventSerializer,
    )
    def get(self, request: Request, run_id: uuid.UUID, sequence: str) -> Response:
        """Show everything that is known of one event, its bytes too."""
        given = read(request)
        try:
            number = OffsetField().run_validation(sequence)
        except serializers.ValidationError as exc:
            detail = "A sequence is a decimal number of at most 63 bits."
            raise ValidationFailed([Fault("invalid", detail, parameter="sequence")]) from exc
        run = get_run(run_id, owner_user_id=given.owner)
        get_record(run)
        event = raw_event(run.pk, run.number, number)
        if event is None:
            raise NotFound("The run has no such event.", code="event-not-found")
        return Response(event)


class RunScrollback(APIView):
    """The bytes of a stream."""

    @extend_schema(
        operation_id="runs.scrollback",
        tags=["Runs"],
        summary="Read what a process wrote or read, byte for byte",
        description=SCROLLBACK_DESCRIPTION,
        parameters=[OWNER_QUERY, ScrollbackParameters, *STREAM_HEADERS],
        responses=SCROLLBACK_RESPONSES,
    )
    def get(self, request: Request, run_id: uuid.UUID) -> Response | StreamingHttpResponse:
        """Show a piece of a stream, or send all of it."""
        given = read(request, query=ScrollbackParameters)
        query = given.query
        limit, start = query.get("limit_bytes"), query["from_offset"]
        raw = asks_for(request, BYTES)
        if not raw and (limit or 0) > SCROLLBACK_MAX_BYTES:
            detail = f"As JSON at most {SCROLLBACK_MAX_BYTES} bytes are sent at a time."
            raise ValidationFailed([Fault("out-of-range", detail, parameter="limitBytes")])
        run = get_run(run_id, owner_user_id=given.owner)
        get_record(run)
        stream = STREAM_NUMBERS[query["stream"]]
        process = _process(run, query.get("process_id"), stream)
        at = query.get("at_sequence", INT64_MAX)
        view = open_stream(run.number, process or 0, stream, at)
        if raw:
            return _raw_bytes(view, start=start, limit=limit)
        answer = scrollback(view, start=start, limit=limit or SCROLLBACK_BYTES)
        if process is None:
            del answer["processId"]
        return Response(answer, headers={"Vary": "Accept"})


def _process(run: Run, wanted: int | None, stream: int) -> int | None:
    """Return the number of the process that is meant; None when the run has started none so far.

    Unless it is named, the leading process with such a stream, if there is only one.
    """
    if wanted is not None:
        return _known(run, wanted)
    leaders = export.processes(run)
    output = OUTPUT_BESIDE.get(stream, stream)
    candidates = [leader for leader in leaders if output in leader.streams] or leaders
    if len(candidates) > 1:
        raise _several("leading processes", candidates)
    return candidates[0].process_number if candidates else None


OUTPUT_BESIDE = {Stream.STDIN: Stream.STDOUT, Stream.PTY_INPUT: Stream.PTY_OUTPUT}


def _known(run: Run, wanted: int) -> int:
    rows = RunProcess.objects.filter(run_number=run.number)
    if wanted > 2**31 - 1 or not rows.filter(process_number=wanted).exists():
        detail = "The run has no such process."
        raise ValidationFailed([Fault("unknown-process", detail, parameter="processId")])
    return wanted


def _several(what: str, processes: Sequence[RunProcess]) -> ValidationFailed:
    shown = ", ".join(str(process.process_number) for process in processes[:SHOWN_PROCESSES])
    more = len(processes) - SHOWN_PROCESSES
    named = f"{shown} and {more} more" if more > 0 else shown
    detail = f"The run has several {what}, say which one: {named}."
    return ValidationFailed([Fault("required", detail, parameter="processId")])


def _raw_bytes(view: StreamView, *, start: int, limit: int | None) -> StreamingHttpResponse:
    """Send the bytes of a stream; what is missing is told beforehand."""
    missing = view.missing(start, view.end)
    pieces = (piece for _, piece in view.chunks(start, limit))
    response = StreamingHttpResponse(pieces, content_type=BYTES)
    shown = ", ".join(f"{span.start}-{span.end}" for span in missing[:SHOWN_RANGES])
    if missing:
        response["x-missing-ranges"] = shown
    response["x-missing-count"] = str(len(missing))
    response["x-stream-complete"] = str(view.closed and not missing).lower()
    response["Vary"] = "Accept"
    return response


class RunLosses(APIView):
    """What the record of a run does not hold."""

    @extend_schema(
        operation_id="runs.loss",
        tags=["Runs"],
        summary="Read what the record of a run does not hold",
        parameters=[OWNER_QUERY],
        responses=LossSerializer,
    )
    def get(self, request: Request, run_id: uuid.UUID) -> Response:
        """Show the losses of a record, and how far it saw what happened."""
        run = get_run(run_id, owner_user_id=read(request).owner)
        return Response(loss(run, get_record(run)))


class RunChanges(APIView):
    """What a run changed."""

    @extend_schema(
        operation_id="runs.changes",
        tags=["Runs"],
        summary="Read what a run changed in the working tree",
        parameters=[OWNER_QUERY],
        responses=ChangesSerializer,
    )
    def get(self, request: Request, run_id: uuid.UUID) -> Response:
        """Show the files and the diff of a run; both are empty until it has ended."""
        run = get_run(run_id, owner_user_id=read(request).owner)
        get_record(run)
        return Response(changes(run))


class RunExport(APIView):
    """A record as a file."""

    @extend_schema(
        operation_id="runs.export",
        tags=["Runs"],
        summary="Take a record away as a file",
        description=EXPORT_DESCRIPTION,
        parameters=[OWNER_QUERY, ExportParameters],
        responses=EXPORT_RESPONSES,
    )
    def get(self, request: Request, run_id: uuid.UUID) -> StreamingHttpResponse:
        """Send the record in the format that is asked for."""
        given = read(request, query=ExportParameters)
        query = given.query
        run = get_run(run_id, owner_user_id=given.owner)
        head = get_record(run)
        if head is None:
            raise NotFound("This run is not recorded.", code="record-not-found")
        number = query.get("process_id")
        if number is not None:
            _known(run, number)
        processes = export.processes(run, number)
        if query["format"] == "asciicast":
            # A recording is one terminal's; what several showed cannot be shown on one.
            terminals = [process for process in processes if Stream.PTY_OUTPUT in process.streams]
            if len(terminals) > 1:
                raise _several("terminals", terminals)
            processes = terminals or processes
            lines = export.asciicast(run, head, processes, with_input=query["input"])
        elif query["format"] == "text":
            lines = export.plain_text(run, head, processes)
        else:
            lines = export.ndjson(run, head)
        return StreamingHttpResponse(lines, content_type=export.CONTENT_TYPES[query["format"]])
