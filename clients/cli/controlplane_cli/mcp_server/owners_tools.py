"""What all tools share: how they find what an owner has, and how they tell of it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from controlplane_cli.mcp_server.bounded import MOST_BYTES
from controlplane_cli.naming import is_id, meant
from controlplane_client import AsyncClient, AsyncRun, AsyncWorkspace, RunInfo, WorkspaceInfo

Told = dict[str, Any]

LONGEST_WAIT = 600.0

WorkspaceName = Annotated[str, Field(description="Name or id of a workspace.")]
MaxBytes = Annotated[
    int, Field(ge=1, le=MOST_BYTES, description="At most so many bytes of each output or file.")
]
Wait = Annotated[
    float, Field(ge=0, le=LONGEST_WAIT, description="Answer after so many seconds at the latest.")
]


class OwnersTools:
    """Tools for one owner, who is that of the client."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def run(self, run_id: str) -> AsyncRun:
        """Return a run by its id."""
        if not is_id(run_id):
            raise ValueError(f"{run_id!r} is no run_id: execute answers one")
        return await self.client.run(run_id)

    async def workspace(self, name: str) -> AsyncWorkspace:
        """Return a workspace by its name or id."""
        if is_id(name):
            return await self.client.connect(name)
        found = [each async for each in self.client.workspaces()]
        return self.client.workspace(meant(name, found).id)


def of_workspace(info: WorkspaceInfo) -> Told:
    """Tell how a workspace stands."""
    told: Told = {"workspace_id": info.id, "name": info.name, "status": info.status}
    if info.reason is not None and info.status != "ready":
        told["waiting_for"] = info.reason.message
    if info.error is not None:
        told["error"] = info.error
    if info.expires_at is not None:
        told["stops_at"] = str(info.expires_at)
    return told


def of_run(info: RunInfo) -> Told:
    """Tell how a run stands."""
    told: Told = {"run_id": info.id, "status": info.status}
    what = info.prompt if info.command is None else " ".join(info.command)
    if what:
        told["what"] = what if len(what) <= 200 else f"{what[:199]}…"
    if info.exit_code is not None:
        told["exit_code"] = info.exit_code
    if info.exit_signal is not None:
        told["exit_signal"] = info.exit_signal
    if info.error is not None:
        told["error"] = info.error
    return told
