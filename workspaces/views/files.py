"""The endpoints of a workspace's files and ports."""

from __future__ import annotations

import uuid
from typing import IO, cast

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from controlplane.http.openapi import OWNER_QUERY
from controlplane.http.requests import read
from controlplane.http.serializers import page_of
from controlplane.http.stream_answers import abandoned_by_client
from workspaces.engines.runtime_adapters import shared_runtime_adapter
from workspaces.files import openapi
from workspaces.files.conditions import conditions_of, range_of
from workspaces.files.port_links import make_link
from workspaces.files.refusals import unreachable
from workspaces.files.serializers import (
    FileEntrySerializer,
    FileListQuery,
    FileQuery,
    MakeDirectorySerializer,
    MakePortLinkSerializer,
    MoveSerializer,
    PortLinkSerializer,
    PortListSerializer,
    RemoveQuery,
    StatQuery,
    UnpackedSerializer,
    WriteQuery,
    WrittenSerializer,
)
from workspaces.files.services import WorkspaceFiles, path_of, place_of
from workspaces.files.transfer import archive_answer, file_answer
from workspaces.lifecycle.attempt_states import require_ready
from workspaces.models import RuntimeInstance
from workspaces.queries import latest_attempt
from workspaces.runtimes.base import LaunchError, RuntimeAdapter

FilePageSerializer = page_of(FileEntrySerializer, "FilePageSerializer")


class FileViewSet(ViewSet):
    """The files of a workspace that runs: every call is one of its user's, and recorded."""

    @extend_schema(
        operation_id="files.read",
        tags=["Files"],
        summary="Read a file, or a range of it",
        description=openapi.READ_DESCRIPTION,
        parameters=[OWNER_QUERY, FileQuery, *openapi.READ_HEADERS],
        responses=openapi.READ_RESPONSES,
    )
    def retrieve(self, request: Request, workspace_id: uuid.UUID) -> HttpResponseBase:
        """Send a file."""
        given = read(request, query=FileQuery, by_id=True)
        wanted = conditions_of(request.headers) | range_of(request.headers)
        head_only = request.method == "HEAD"
        files = _files(request, workspace_id, given.owner)
        call = files.open("read", path_of(given.query), headOnly=head_only, **wanted)
        return file_answer(call, head_only=head_only)

    @extend_schema(
        operation_id="files.write",
        tags=["Files"],
        summary="Write a file",
        description=openapi.WRITE_DESCRIPTION,
        parameters=[OWNER_QUERY, WriteQuery, *openapi.WRITE_HEADERS],
        request=openapi.FILE_BODY,
        responses={200: WrittenSerializer, 201: WrittenSerializer},
    )
    def update(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Store a file."""
        given = read(request, query=WriteQuery, body=None, by_id=True)
        wanted = conditions_of(request.headers)
        if mode := given.query.get("mode"):
            wanted["mode"] = int(mode, 8)
        files = _files(request, workspace_id, given.owner)
        stored = files.write(path_of(given.query), _content(request), **wanted)
        headers = {"ETag": f'"{stored["sha256"]}"'}
        if stored["created"] and (place := place_of(workspace_id, given.query)):
            headers["Location"] = place
        status = 201 if stored["created"] else 200
        return Response(WrittenSerializer(stored).data, status=status, headers=headers)

    @extend_schema(
        operation_id="files.delete",
        tags=["Files"],
        summary="Remove a file or folder",
        description=openapi.REMOVE_DESCRIPTION,
        parameters=[OWNER_QUERY, RemoveQuery, openapi.IF_MATCH, openapi.IF_NONE_MATCH],
        responses={204: None},
    )
    def destroy(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Remove a file or folder."""
        given = read(request, query=RemoveQuery, by_id=True)
        wanted = conditions_of(request.headers)
        files = _files(request, workspace_id, given.owner)
        path, recursive = path_of(given.query), given.query["recursive"]
        files.ask("remove", path, recursive=recursive, **wanted)
        return Response(status=204)

    @extend_schema(
        operation_id="files.stat",
        tags=["Files"],
        summary="Describe a file or folder",
        description=openapi.STAT_DESCRIPTION,
        parameters=[OWNER_QUERY, StatQuery],
        responses=FileEntrySerializer,
    )
    def stat(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Tell what lies at a path."""
        given = read(request, query=StatQuery, by_id=True)
        files = _files(request, workspace_id, given.owner)
        found = files.stat(path_of(given.query), with_hash=given.query["hash"])
        return Response(FileEntrySerializer(found).data)

    @extend_schema(
        operation_id="files.list",
        tags=["Files"],
        summary="List the entries of a folder",
        description=openapi.LIST_DESCRIPTION,
        parameters=[OWNER_QUERY, FileListQuery],
        responses=FilePageSerializer,
    )
    def list(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """List the entries of a folder."""
        given = read(request, query=FileListQuery, by_id=True)
        files = _files(request, workspace_id, given.owner)
        limit, after = given.query["limit"], given.query.get("cursor")
        found = files.list_folder(path_of(given.query), limit=limit, after=after)
        return Response(FilePageSerializer(found).data)

    @extend_schema(
        operation_id="files.move",
        tags=["Files"],
        summary="Move or rename a file or folder",
        description=openapi.MOVE_DESCRIPTION,
        parameters=[OWNER_QUERY],
        request=MoveSerializer,
        responses={204: None},
    )
    def move(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Give something another name."""
        given = read(request, body=MoveSerializer, by_id=True)
        files = _files(request, workspace_id, given.owner)
        source, target = path_of(given.body, "from_path"), path_of(given.body, "to_path")
        files.move(source, target, overwrite=given.body["overwrite"])
        return Response(status=204)

    @extend_schema(
        operation_id="files.makeDirectory",
        tags=["Files"],
        summary="Create a folder",
        description=openapi.MAKE_DESCRIPTION,
        parameters=[OWNER_QUERY],
        request=MakeDirectorySerializer,
        responses={204: None},
    )
    def make_directory(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Create a folder."""
        given = read(request, body=MakeDirectorySerializer, by_id=True)
        files = _files(request, workspace_id, given.owner)
        files.ask("mkdir", path_of(given.body), parents=given.body["parents"])
        return Response(status=204)

    @extend_schema(
        operation_id="files.pack",
        tags=["Files"],
        summary="Read a folder as a tar",
        description=openapi.PACK_DESCRIPTION,
        parameters=[OWNER_QUERY, FileQuery],
        responses=openapi.ARCHIVE_RESPONSES,
    )
    def pack(self, request: Request, workspace_id: uuid.UUID) -> StreamingHttpResponse:
        """Send a folder as a tar."""
        given = read(request, query=FileQuery, by_id=True)
        files = _files(request, workspace_id, given.owner)
        return archive_answer(files.open("pack", path_of(given.query)))

    @extend_schema(
        operation_id="files.unpack",
        tags=["Files"],
        summary="Unpack a tar into a folder",
        description=openapi.UNPACK_DESCRIPTION,
        parameters=[OWNER_QUERY, FileQuery],
        request=openapi.ARCHIVE_BODY,
        responses=UnpackedSerializer,
    )
    def unpack(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """Unpack a tar into a folder."""
        given = read(request, query=FileQuery, body=None, by_id=True)
        files = _files(request, workspace_id, given.owner)
        stored = files.unpack(path_of(given.query), _content(request))
        return Response(UnpackedSerializer(stored).data)

    @extend_schema(
        operation_id="ports.list",
        tags=["Ports"],
        summary="List the ports that listen",
        description=openapi.PORTS_DESCRIPTION,
        parameters=[OWNER_QUERY],
        responses=PortListSerializer,
    )
    def ports(self, request: Request, workspace_id: uuid.UUID) -> Response:
        """List what listens in a workspace."""
        given = read(request, by_id=True)
        files = _files(request, workspace_id, given.owner)
        return Response(PortListSerializer({"items": files.ports()}).data)

    @extend_schema(
        operation_id="ports.link",
        tags=["Ports"],
        summary="Make a link to a port",
        description=openapi.PORT_LINK_DESCRIPTION,
        parameters=[OWNER_QUERY],
        request=MakePortLinkSerializer,
        responses={201: PortLinkSerializer},
    )
    def link_port(self, request: Request, workspace_id: uuid.UUID, port: int) -> Response:
        """Make a link that opens a port of a workspace."""
        given = read(request, body=MakePortLinkSerializer, by_id=True)
        attempt, _ = require_ready(latest_attempt(workspace_id, owner_user_id=given.owner))
        owner = attempt.workspace.owner_user_id
        made = make_link(workspace_id=workspace_id, port=port, owner=owner, path=given.body["path"])
        return Response(PortLinkSerializer(made).data, status=201)


def _content(request: Request) -> IO[bytes]:
    """Return the body as it was sent, to be read piece by piece."""
    return cast("IO[bytes]", request._request)


def _adapter_of(runtime: RuntimeInstance) -> RuntimeAdapter:
    try:
        return shared_runtime_adapter(runtime.engine_name)
    except LaunchError as error:
        raise unreachable(error) from error


def _files(request: Request, workspace_id: uuid.UUID, owner: str | None) -> WorkspaceFiles:
    """Return the files of a workspace that is ready; raise ``NotFound`` or ``Conflict``."""
    _, runtime = require_ready(latest_attempt(workspace_id, owner_user_id=owner))
    return WorkspaceFiles(
        adapter=_adapter_of(runtime),
        run_id=runtime.run_id,
        by=owner or "",
        request_id=getattr(request._request, "request_id", ""),
        abandoned=abandoned_by_client(request),
    )
