"""The twelve tools. Their docstrings are what a model reads."""

from __future__ import annotations

import base64
import binascii
import functools
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any, Literal, ParamSpec

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from controlplane_cli.mcp_server.bounded import (
    DEFAULT_BYTES,
    MOST_BYTES,
    as_text,
    piece_of_text,
    text_or_base64,
    whole_characters,
)
from controlplane_cli.naming import is_id, meant
from controlplane_client import (
    AsyncClient,
    AsyncRun,
    AsyncWorkspace,
    ControlPlaneError,
    NotReady,
    Problem,
    RunInfo,
    WaitTimeout,
    WorkspaceInfo,
    default_repository,
)

P = ParamSpec("P")
Told = dict[str, Any]
Tool = Callable[P, Awaitable[Told]]

LISTED = 50
LONGEST_WAIT = 600.0
LOOK_AGAIN_SECONDS = 2.0

WorkspaceName = Annotated[str, Field(description="Name or id of a workspace.")]
RunId = Annotated[str, Field(description="The run_id that execute has answered.")]
MaxBytes = Annotated[
    int, Field(ge=1, le=MOST_BYTES, description="At most so many bytes of each output or file.")
]
Offset = Annotated[
    int, Field(ge=0, description="Byte to begin at: 0, or the next_offset of the answer before.")
]
Wait = Annotated[
    float, Field(ge=0, le=LONGEST_WAIT, description="Answer after so many seconds at the latest.")
]
Stream = Literal["stdout", "stderr", "pty"]

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
REACHES_OUT = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)


def add_tools(server: MCPServer[Any], client: AsyncClient) -> None:
    """Give a server the tools, which work for the owner of ``client``."""
    tools = Tools(client)
    for tool, hints in (
        (tools.create_workspace, CHANGES),
        (tools.list_workspaces, READS),
        (tools.describe_workspace, READS),
        (tools.change_workspace, DESTROYS),
        (tools.execute, REACHES_OUT),
        (tools.read_output, READS),
        (tools.send_input, REACHES_OUT),
        (tools.read_file, READS),
        (tools.write_file, DESTROYS),
        (tools.list_files, READS),
        (tools.preview_port, CHANGES),
        (tools.show_record, READS),
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


class Tools:
    """The tools, for one owner."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    # ------------------------------------------------------------ workspaces

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
        workspace = await self._client.create(
            spec,
            repository=default_repository(self._client.owner),
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
        return _of_workspace(info)

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
        async for info in self._client.workspaces(status):
            if place >= skip + LISTED:
                return {"workspaces": found, "next_skip": place}
            if place >= skip:
                found.append(_of_workspace(info))
            place += 1
        return {"workspaces": found}

    async def describe_workspace(self, workspace: WorkspaceName) -> Told:
        """Say how a workspace stands: why it is not ready, what listens in it, its latest runs."""
        there = await self._workspace(workspace)
        info = await there.refresh()
        told = _of_workspace(info)
        if info.status == "ready":
            told["ports"] = [
                {"port": each.port, "address": each.address, "process": each.process}
                for each in await there.ports()
            ]
        runs: list[Told] = []
        async for run in there.runs():
            runs.append(_of_run(run))
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
        there = await self._workspace(workspace)
        if action == "start":
            await there.start(wait=False)
            return await self._until_ready(there, wait_seconds)
        change = there.stop if action == "stop" else there.delete
        try:
            return _of_workspace(await change(timeout=wait_seconds))
        except WaitTimeout:
            return _of_workspace(await there.refresh())

    # ------------------------------------------------------------ commands

    async def execute(
        self,
        workspace: WorkspaceName,
        command: Annotated[
            str | list[str],
            Field(description="A line for bash, or a program and its arguments."),
        ],
        cwd: Annotated[str | None, Field(description="Folder to run in.")] = None,
        env: Annotated[dict[str, str] | None, Field(description="Further variables.")] = None,
        background: Annotated[
            bool, Field(description="Answer at once; for servers and what takes long.")
        ] = False,
        open_input: Annotated[
            bool, Field(description="Let it read what send_input gives; else it has no input.")
        ] = False,
        time_limit_seconds: Annotated[
            float | None, Field(gt=0, description="End the command after so many seconds.")
        ] = None,
        record_changes: Annotated[
            bool, Field(description="Record which files it changes, for show_record.")
        ] = False,
        wait_seconds: Wait = 60.0,
        max_bytes: MaxBytes = DEFAULT_BYTES,
    ) -> Told:
        """Execute a command in a workspace; answer with its exit code and what it wrote.

        A command that has not ended after wait_seconds goes on: status is then "running", and
        read_output shows the rest, as it does where next_offset says that there is more.
        """
        run = await (await self._workspace(workspace)).spawn(
            command,
            cwd=cwd,
            env=env,
            stdin=open_input,
            timeout=time_limit_seconds,
            changes=record_changes,
        )
        if not background:
            try:
                await run.wait(timeout=wait_seconds)
            except WaitTimeout:
                await run.refresh()
        told = _of_run(run.info or await run.refresh())
        if background:
            return told
        for stream in ("stdout", "stderr"):
            told[stream] = await self._part(run, stream, 0, max_bytes)
        return told

    async def read_output(
        self,
        run_id: RunId,
        stream: Annotated[Stream, Field(description="pty is that of a terminal.")] = "stdout",
        offset: Annotated[
            int,
            Field(description="Byte to begin at, such as next_offset; negative: from the end."),
        ] = 0,
        wait_seconds: Annotated[
            float,
            Field(ge=0, le=LONGEST_WAIT, description="Wait so long for something behind offset."),
        ] = 0.0,
        max_bytes: MaxBytes = DEFAULT_BYTES,
    ) -> Told:
        """Read what a command has written, and whether it goes on.

        Call it again with offset=next_offset for what follows. Offsets count bytes.
        """
        run = await self._run(run_id)
        deadline = time.monotonic() + wait_seconds
        if offset < 0:
            # The end is not told by itself: the parts before it are passed over.
            offset = await self._end(run, stream, -offset)
        part = await self._part(run, stream, offset, max_bytes)
        while (
            not part["text"]
            and not (run.info is not None and run.info.ended)
            and (left := deadline - time.monotonic()) > 0
        ):
            # It tells what comes from now on: what came since the look before it does not.
            await self._something(run, stream, min(left, LOOK_AGAIN_SECONDS))
            part = await self._part(run, stream, offset, max_bytes)
        ended = run.info is not None and run.info.ended
        info = await run.refresh()
        if info.ended and not ended:
            # It ended behind the look: who is told so asks for no more.
            part = await self._part(run, stream, offset, max_bytes)
        return {**_of_run(info), stream: part}

    async def _end(self, run: AsyncRun, stream: str, back: int) -> int:
        part = await run.output(stream, limit=16 * 1024 * 1024)
        while part.more:
            part = await run.output(stream, start=part.next, limit=16 * 1024 * 1024)
        return max(0, part.next - back)

    async def _something(self, run: AsyncRun, stream: str, seconds: float) -> None:
        try:
            async with aclosing(run.follow("latest", timeout=seconds)) as events:
                async for event in events:
                    if event.stream == stream:
                        return
        except WaitTimeout:
            return

    async def _part(self, run: AsyncRun, stream: str, offset: int, limit: int) -> Told:
        part = await run.output(stream, start=offset, limit=limit)
        content = whole_characters(part.content) if part.more else part.content
        told: Told = {"text": as_text(content)}
        if part.missing:
            told["missing_bytes"] = [list(each) for each in part.missing]
        told["next_offset"] = part.next - (len(part.content) - len(content))
        told["more"] = part.more
        return told

    async def send_input(
        self,
        run_id: RunId,
        text: Annotated[str, Field(description="Given as it is: end lines with a newline.")] = "",
        end: Annotated[bool, Field(description="Tell it that there is no more input.")] = False,
        signal: Annotated[
            Literal["INT", "TERM", "KILL", "HUP", "QUIT", "USR1", "USR2"] | None,
            Field(description="Send it a signal, too; TERM ends most programs."),
        ] = None,
    ) -> Told:
        """Give input to a command that execute has started with open_input, or signal any command.

        Answers how it stands then; read_output shows what it writes.
        """
        run = await self._run(run_id)
        if text or (end and not signal):
            await run.write(text, end=end)
        elif end:
            await run.close_stdin()
        if signal is not None:
            await run.signal(signal)
        return _of_run(await run.refresh())

    # ------------------------------------------------------------ files

    async def read_file(
        self,
        workspace: WorkspaceName,
        path: Annotated[str, Field(description="Absolute, or from where commands begin.")],
        offset: Offset = 0,
        max_bytes: MaxBytes = DEFAULT_BYTES,
    ) -> Told:
        """Read a file, or a part of it. What is no text comes as content_base64.

        Go on with offset=next_offset where there is one; size is told where it is known.
        """
        there = await self._workspace(workspace)
        info = await there.files.stat(path)
        size = info.size if info.type == "file" else None
        content = b""
        if size is None or offset < size:
            try:
                async with aclosing(
                    there.files.stream(path, start=offset, end=offset + max_bytes)
                ) as stream:
                    content = b"".join([each async for each in stream])
            except Problem as problem:
                # What a link leads to may end there: how long it is, is not known before.
                if problem.code != "range-not-satisfiable" or size is not None or not offset:
                    raise
        end = offset + len(content)
        if size is None:
            more = len(content) == max_bytes
            if not more and (content or not offset):
                size = end
        else:
            more = end < size
        if more:
            content = whole_characters(content)
            end = offset + len(content)
        return {
            **text_or_base64(content),
            **({} if size is None else {"size": size}),
            **({"next_offset": end} if more else {}),
        }

    async def write_file(
        self,
        workspace: WorkspaceName,
        path: Annotated[str, Field(description="Absolute, or from where commands begin.")],
        content: Annotated[str | None, Field(description="The whole new content.")] = None,
        content_base64: Annotated[
            str | None, Field(description="Instead of content, for what is no text.")
        ] = None,
        only_new: Annotated[bool, Field(description="Fail where there is one already.")] = False,
        executable: Annotated[bool, Field(description="Make it a program.")] = False,
    ) -> Told:
        """Store a file, whole or not at all; one that is there is replaced, folders are made."""
        if (content is None) == (content_base64 is None):
            raise ValueError("give either content or content_base64")
        try:
            data = (
                base64.b64decode(content_base64, validate=True)
                if content_base64 is not None
                else (content or "").encode()
            )
        except binascii.Error as error:
            raise ValueError(f"content_base64 is no base64: {error}") from error
        there = await self._workspace(workspace)
        mode = 0o755 if executable else None
        written = await there.files.write(path, data, mode=mode, only_new=only_new)
        return {"size": written.size, "sha256": written.sha256, "created": written.created}

    async def list_files(
        self,
        workspace: WorkspaceName,
        path: Annotated[str, Field(description="A folder.")] = ".",
        cursor: Annotated[
            str | None, Field(description="The next_cursor of the answer before.")
        ] = None,
    ) -> Told:
        """List what is in a folder, 200 names at a time; go on with cursor=next_cursor."""
        there = await self._workspace(workspace)
        found, following = await there.files.page(path, cursor=cursor, limit=200)
        entries = [
            {
                "name": each.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
                "type": each.type,
                "size": each.size,
            }
            for each in found
        ]
        return {"entries": entries, **({"next_cursor": following} if following else {})}

    # ------------------------------------------------------------ ports and records

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
        link = await (await self._workspace(workspace)).link(port, path)
        return {"url": link.url, "expires_at": str(link.expires_at)}

    async def show_record(
        self,
        run_id: RunId,
        offset: Annotated[int, Field(ge=0, description="Byte of the diff to begin at.")] = 0,
        max_bytes: MaxBytes = DEFAULT_BYTES,
    ) -> Told:
        """Show what the record of a command says: how it ended, and what it changed.

        The files and the diff are there when it was executed with record_changes, or was a prompt,
        and has ended. record_complete is false when something of it is missing.
        """
        run = await self._run(run_id)
        told = _of_run(run.info or await run.refresh())
        changes, loss = await run.changes(), await run.loss()
        files = [{"path": each["path"], "change": each["change"]} for each in changes["files"]]
        told["record_complete"] = loss["complete"]
        told["changed_files"] = files[:200]
        if len(files) > 200:
            told["further_changed_files"] = len(files) - 200
        told["diff"] = piece_of_text(changes["diff"], offset, max_bytes)
        if changes["truncated"]:
            told["diff"]["record_has_only_this_much"] = True
        return told

    async def _run(self, run_id: str) -> AsyncRun:
        if not is_id(run_id):
            raise ValueError(f"{run_id!r} is no run_id: execute answers one")
        return await self._client.run(run_id)

    async def _workspace(self, name: str) -> AsyncWorkspace:
        if is_id(name):
            return await self._client.connect(name)
        found = [each async for each in self._client.workspaces()]
        return self._client.workspace(meant(name, found).id)


def _of_workspace(info: WorkspaceInfo) -> Told:
    told: Told = {"workspace_id": info.id, "name": info.name, "status": info.status}
    if info.reason is not None and info.status != "ready":
        told["waiting_for"] = info.reason.message
    if info.error is not None:
        told["error"] = info.error
    if info.expires_at is not None:
        told["stops_at"] = str(info.expires_at)
    return told


def _of_run(info: RunInfo) -> Told:
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
