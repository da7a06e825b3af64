"""The endpoint of execs: a command in a workspace, and what it answered."""

from __future__ import annotations

import uuid

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.http.openapi import OWNER_QUERY
from controlplane.http.requests import read
from runs.commands import new_exec
from runs.exec_openapi import (
    EXEC_DESCRIPTION,
    EXEC_EXAMPLES,
    EXEC_HEADERS,
    INPUT_DESCRIPTION,
    INPUT_EXAMPLES,
)
from runs.exec_requests import read_exec
from runs.exec_serializers import (
    ExecRequestSerializer,
    ExecSerializer,
    InputRequestSerializer,
    InputStateSerializer,
)
from runs.execs import StartedExec, answer_of, place_to_wait, start_exec
from runs.inputs import give_input
from runs.presentation import present_run
from runs.serializers import RunSerializer
from runs.services import get_run


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
        responses={200: ExecSerializer, 202: RunSerializer},
    )
    def create(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Execute a command; answer when it has ended, or at once."""
        given, key, digest = read_exec(request)
        new = new_exec(workspace_id, owner_user_id=given.owner, values=given.body)
        if given.body["background"]:
            started = start_exec(new, key=key, request_hash=digest)
            started.ending.close()
            return _going_on(started)
        with place_to_wait():
            return _waited_for(start_exec(new, key=key, request_hash=digest))

    @extend_schema(
        operation_id="runs.input",
        tags=["Runs"],
        summary="Give the program of a run input or a signal",
        description=INPUT_DESCRIPTION,
        parameters=[OWNER_QUERY],
        examples=INPUT_EXAMPLES,
        request=InputRequestSerializer,
        responses={202: InputStateSerializer},
    )
    def input(self, request: Request, run_id: uuid.UUID) -> Response:
        """Take input; the program gets it as soon as it reads."""
        given = read(request, body=InputRequestSerializer, by_id=True)
        run = get_run(run_id, owner_user_id=given.owner)
        return Response(InputStateSerializer(give_input(run, given.body)).data, status=202)


def _waited_for(started: StartedExec) -> Response:
    try:
        if not started.ending.wait(settings.RUN_EXEC_WAIT_MS / 1000):
            return _going_on(started)
    finally:
        started.ending.close()
    headers = _headers(started)
    return Response(ExecSerializer(answer_of(started.run)).data, headers=headers)


def _going_on(started: StartedExec) -> Response:
    headers = {**_headers(started), "Location": f"/v1/runs/{started.run.pk}"}
    return Response(present_run(started.run), status=202, headers=headers)


def _headers(started: StartedExec) -> dict[str, str]:
    return {"idempotency-replayed": "true"} if started.replayed else {}
