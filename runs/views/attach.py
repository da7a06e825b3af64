"""The endpoint of attaches: a WebSocket to the command of a run."""

from __future__ import annotations

import uuid

from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.viewsets import ViewSet

from controlplane.http.openapi import OWNER_QUERY
from controlplane.http.requests import read
from runs.attach.attached_run import attach
from runs.attach.description import (
    ATTACH_DESCRIPTION,
    ATTACH_RESPONSES,
    HANDSHAKE,
    AttachParameters,
)
from runs.services import get_run


class AttachViewSet(ViewSet):
    """Clients that are connected to a running program."""

    @extend_schema(
        operation_id="runs.attach",
        tags=["Runs"],
        summary="Attach to the terminal or the pipes of a command",
        description=ATTACH_DESCRIPTION,
        parameters=[OWNER_QUERY, AttachParameters, *HANDSHAKE],
        responses=ATTACH_RESPONSES,
    )
    def attach(self, request: Request, run_id: uuid.UUID) -> HttpResponseBase:
        """Go on as a WebSocket: output, input and control."""
        given = read(request, query=AttachParameters, by_id=True)
        run = get_run(run_id, owner_user_id=given.owner)
        after = given.query.get("after")
        return attach(request, run, after=after, after_stderr=given.query.get("after_stderr"))
