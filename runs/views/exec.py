"""The endpoint of execs: a command in a workspace, and what it answered."""

from __future__ import annotations

import uuid
from contextlib import closing

from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.http.negotiation import asks_for
from controlplane.http.openapi import OWNER_QUERY
from controlplane.http.requests import read
from controlplane.http.server_sent_events import CONTENT_TYPE as EVENT_STREAM
from controlplane.http.server_sent_events import STREAM_RESPONSES, stream_answer
from controlplane.http.stream_answers import StreamAnswer, require_stream_room
from runs.commands import new_exec
from runs.exec.exec_requests import read_exec
from runs.exec.execs import StartedExec, answer_of, ended_soon, start_exec
from runs.exec.openapi import (
    EXEC_DESCRIPTION,
    EXEC_EXAMPLES,
    EXEC_HEADERS,
    INPUT_DESCRIPTION,
    INPUT_EXAMPLES,
    INPUT_LOCATION,
)
from runs.exec.serializers import (
    ExecRequestSerializer,
    ExecSerializer,
    InputRequestSerializer,
    InputStateSerializer,
)
from runs.input.later import give_input
from runs.models import Run
from runs.presentation import present_run
from runs.serializers import RunSerializer
from runs.services import get_record, get_run
from runs.streaming.of_exec import ExecSource
from runs.streaming.of_run import RunSource


class ExecViewSet(ViewSet):
    """Commands that somebody waits for."""

    @extend_schema(
        operation_id="workspaces.exec",
        tags=["Runs"],
        summary="Execute a command in a workspace, and wait for its end",
        description=EXEC_DESCRIPTION,
        parameters=[OWNER_QUERY, *EXEC_HEADERS],
        examples=EXEC_EXAMPLES,
        request=ExecRequestSerializer,
        responses={
            (200, "application/json"): ExecSerializer,
            (200, EVENT_STREAM): STREAM_RESPONSES[200, EVENT_STREAM],
            202: RunSerializer,
        },
    )
    def create(self, request: Request, workspace_id: uuid.UUID) -> HttpResponseBase:
        """Execute a command; answer when it has ended, or at once."""
        given, key, digest = read_exec(request)
        new = new_exec(workspace_id, owner_user_id=given.owner, values=given.body)
        if not given.body["background"]:
            require_stream_room(request)
        started = start_exec(new, key=key, request_hash=digest)
        with closing(started.ending):
            if given.body["background"]:
                return _going_on(started)
            if asks_for(request, EVENT_STREAM):
                return _followed(request, started)
            return _answer(started)

    @extend_schema(
        operation_id="runs.input",
        tags=["Runs"],
        summary="Give the program of a run input or a signal",
        description=INPUT_DESCRIPTION,
        parameters=[OWNER_QUERY, INPUT_LOCATION],
        examples=INPUT_EXAMPLES,
        request=InputRequestSerializer,
        responses={202: InputStateSerializer},
    )
    def input(self, request: Request, run_id: uuid.UUID) -> Response:
        """Take input; the program gets it as soon as it reads."""
        given = read(request, body=InputRequestSerializer, by_id=True)
        run = get_run(run_id, owner_user_id=given.owner)
        state = InputStateSerializer(give_input(run, given.body)).data
        return Response(state, status=202, headers=_location(run))


def _followed(request: Request, started: StartedExec) -> HttpResponseBase:
    """Answer with the events of the run as they are recorded."""
    answer = stream_answer(request, RunSource(started.run))
    for name, value in {**_headers(started), **_location(started.run)}.items():
        answer[name] = value
    return answer


def _answer(started: StartedExec) -> HttpResponseBase:
    """Answer in this thread when it ends soon; else as a stream, which takes none.

    Raises ``Gone`` where retention has removed the record of an earlier request's run.
    """
    headers = _headers(started)
    if ended_soon(started):
        members = answer_of(started.run, wrote_nothing=started.ending.wrote_nothing)
        if started.replayed:
            # Asked afterwards: retention may have removed it while it was read.
            get_record(started.run)
        return Response(ExecSerializer(members).data, headers=headers)
    return StreamAnswer(ExecSource(started.run), content_type="application/json", headers=headers)


def _going_on(started: StartedExec) -> Response:
    headers = {**_headers(started), **_location(started.run)}
    return Response(present_run(started.run), status=202, headers=headers)


def _location(run: Run) -> dict[str, str]:
    return {"Location": f"/v1/runs/{run.pk}"}


def _headers(started: StartedExec) -> dict[str, str]:
    return {"idempotency-replayed": "true"} if started.replayed else {}
