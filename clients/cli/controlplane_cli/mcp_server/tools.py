"""The twelve tools. Their docstrings are what a model reads."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from controlplane_cli.mcp_server.command_tools import CommandTools
from controlplane_cli.mcp_server.file_tools import FileTools
from controlplane_cli.mcp_server.owners_tools import Told
from controlplane_cli.mcp_server.workspace_tools import WorkspaceTools
from controlplane_client import AsyncClient, ControlPlaneError

P = ParamSpec("P")
Tool = Callable[P, Awaitable[Told]]

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
REACHES_OUT = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)


def add_tools(server: MCPServer[Any], client: AsyncClient) -> None:
    """Give a server the tools, which work for the owner of ``client``."""
    workspaces, commands, files = WorkspaceTools(client), CommandTools(client), FileTools(client)
    for tool, hints in (
        (workspaces.create_workspace, CHANGES),
        (workspaces.list_workspaces, READS),
        (workspaces.describe_workspace, READS),
        (workspaces.change_workspace, DESTROYS),
        (commands.execute, REACHES_OUT),
        (commands.read_output, READS),
        (commands.send_input, REACHES_OUT),
        (files.read_file, READS),
        (files.write_file, DESTROYS),
        (files.list_files, READS),
        (workspaces.preview_port, CHANGES),
        (commands.show_record, READS),
    ):
        server.add_tool(_refusing(tool), annotations=hints)


def _refusing(tool: Tool[P]) -> Tool[P]:
    """Return a tool whose failures are sentences that a model can act on."""

    @functools.wraps(tool)
    async def call(*args: P.args, **kwargs: P.kwargs) -> Told:
        try:
            return await tool(*args, **kwargs)
        except (ControlPlaneError, ValueError) as error:
            raise ToolError(str(error)) from error

    return call
