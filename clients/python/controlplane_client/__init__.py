"""A client of the control plane for development and agent workspaces.

``Client`` is for threads, ``AsyncClient`` for asyncio; they have the same methods.
"""

from __future__ import annotations

from controlplane_client._async.attachment import AsyncAttachment
from controlplane_client._async.client import AsyncClient
from controlplane_client._async.files import AsyncFiles
from controlplane_client._async.run import AsyncRun
from controlplane_client._async.workspace import AsyncWorkspace
from controlplane_client._sync.attachment import Attachment
from controlplane_client._sync.client import Client, default_repository
from controlplane_client._sync.files import Files
from controlplane_client._sync.run import Run
from controlplane_client._sync.workspace import Workspace
from controlplane_client.errors import (
    CommandFailed,
    Conflict,
    ControlPlaneError,
    InvalidRequest,
    NotFound,
    NotReady,
    PreconditionFailed,
    Problem,
    RecordGone,
    Unreachable,
    WaitTimeout,
)
from controlplane_client.models import (
    ExecResult,
    FileInfo,
    Output,
    OutputPart,
    Port,
    PreviewLink,
    Reason,
    RunEnd,
    RunInfo,
    StreamEvent,
    Verified,
    WorkspaceInfo,
    Written,
)
from controlplane_client.record_check import check_export

__version__ = "0.4.0"

__all__ = [
    "AsyncAttachment",
    "AsyncClient",
    "AsyncFiles",
    "AsyncRun",
    "AsyncWorkspace",
    "Attachment",
    "Client",
    "CommandFailed",
    "Conflict",
    "ControlPlaneError",
    "ExecResult",
    "FileInfo",
    "Files",
    "InvalidRequest",
    "NotFound",
    "NotReady",
    "Output",
    "OutputPart",
    "Port",
    "PreconditionFailed",
    "PreviewLink",
    "Problem",
    "Reason",
    "RecordGone",
    "Run",
    "RunEnd",
    "RunInfo",
    "StreamEvent",
    "Unreachable",
    "Verified",
    "WaitTimeout",
    "Workspace",
    "WorkspaceInfo",
    "Written",
    "check_export",
    "default_repository",
]
