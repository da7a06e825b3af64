"""The tools for workspaces and their ports."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from controlplane_cli.mcp_server.owners_tools import (
    OwnersTools,
    Told,
    Wait,
    WorkspaceName,
    of_run,
    of_workspace,
)
from controlplane_client import (
    AsyncWorkspace,
    NotReady,
    WaitTimeout,
    default_repository,
)

LISTED = 50


class WorkspaceTools(OwnersTools):
    """Create, list, describe, change; links to what listens there."""

    async def create_workspace(
        self,
        name: Annotated[str, Field(min_length=1, description="What to call it.")],
        packages: Annotated[
            list[str] | None,
            Field(description="Packages to install, by the tool's usual name: python, nodejs, jq."),
        ] = None,
        repository: Annotated[
            str | None, Field(description="Address of a git repository to check out.")
        ] = None,
        blueprint: Annotated[
            dict[str, Any] | None,
            Field(description="A whole blueprint, instead of packages and repository."),
        ] = None,
        ttl_seconds: Annotated[
            int | None, Field(ge=1, description="Stop it by itself after so many seconds.")
        ] = None,
        wait_seconds: Wait = 300.0,
    ) -> Told:
        """Create a workspace: a Linux container with a user, files and a network of its own.

        Answers when it is ready, or how it stands after wait_seconds; describe_workspace then says
        when it is ready. Without arguments but a name it is a plain system with git and a shell.
        Files of a workspace are lost when it is stopped, unless its blueprint says otherwise.
        """
        if blueprint is not None and (packages or repository):
            raise ValueError("give either a blueprint, or packages and repository")
        spec: Told = dict(blueprint or {"harness": {"id": "shell"}})
        if packages:
            spec["tooling"] = {"packages": [{"id": each} for each in packages]}
        if repository:
            spec["sources"] = {"workspace": {"url": repository}}
        plain = "".join(each if each.isalnum() and each.isascii() else "-" for each in name)
        workspace = await self.client.create(
            spec,
            repository=default_repository(self.client.owner),
            tag=plain.strip("-")[:100] or "latest",
            name=name,
            ttl=ttl_seconds,
            wait=False,
        )
        return await self._until_ready(workspace, wait_seconds)

    async def _until_ready(self, workspace: AsyncWorkspace, seconds: float) -> Told:
        try:
            info = await workspace.wait_ready(timeout=seconds)
        except WaitTimeout:
            info = await workspace.refresh()
        except NotReady as error:
            raise ToolError(f"{error} (workspace {workspace.id})") from error
        return of_workspace(info)

    async def list_workspaces(
        self,
        status: Annotated[
            Literal["queued", "running", "ready", "failed", "stopped", "cancelled"] | None,
            Field(description="Only those that stand so."),
        ] = None,
        skip: Annotated[int, Field(ge=0, description="Leave out the first ones.")] = 0,
    ) -> Told:
        """List workspaces, newest first, 50 at a time; go on with skip=next_skip."""
        found: list[Told] = []
        place = 0
        async for info in self.client.workspaces(status):
            if place >= skip + LISTED:
                return {"workspaces": found, "next_skip": place}
            if place >= skip:
                found.append(of_workspace(info))
            place += 1
        return {"workspaces": found}

    async def describe_workspace(self, workspace: WorkspaceName) -> Told:
        """Say how a workspace stands: why it is not ready, what listens in it, its latest runs."""
        there = await self.workspace(workspace)
        info = await there.refresh()
        told = of_workspace(info)
        if info.status == "ready":
            told["ports"] = [
                {"port": each.port, "address": each.address, "process": each.process}
                for each in await there.ports()
            ]
        runs: list[Told] = []
        async for run in there.runs():
            runs.append(of_run(run))
            if len(runs) == 10:
                break
        return {**told, "latest_runs": runs}

    async def change_workspace(
        self,
        workspace: WorkspaceName,
        action: Annotated[
            Literal["stop", "start", "delete"],
            Field(description="stop ends all that runs there; delete removes it for good."),
        ],
        wait_seconds: Wait = 300.0,
    ) -> Told:
        """Stop, start or delete a workspace. Its records stay in every case.

        What is in its files is lost when it is stopped, unless its blueprint is persistent; delete
        removes all files and cannot be undone.
        """
        there = await self.workspace(workspace)
        if action == "start":
            await there.start(wait=False)
            return await self._until_ready(there, wait_seconds)
        change = there.stop if action == "stop" else there.delete
        try:
            return of_workspace(await change(timeout=wait_seconds))
        except WaitTimeout:
            return of_workspace(await there.refresh())

    async def preview_port(
        self,
        workspace: WorkspaceName,
        port: Annotated[int, Field(ge=1, le=65535)],
        path: Annotated[str, Field(description="Where on it the link leads.")] = "/",
    ) -> Told:
        """Make a link that shows a web server of a workspace in a browser, for some minutes.

        Whoever has the link can use it. The server may listen on 127.0.0.1 only; describe_workspace
        says which ports something listens on.
        """
        link = await (await self.workspace(workspace)).link(port, path)
        return {"url": link.url, "expires_at": str(link.expires_at)}
