"""The tools for commands: execute them, read what they write, give them input, show the record."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Annotated, Literal

from pydantic import Field

from controlplane_cli.mcp_server.bounded import (
    DEFAULT_BYTES,
    as_text,
    piece_of_text,
    whole_characters,
)
from controlplane_cli.mcp_server.owners_tools import (
    LONGEST_WAIT,
    MaxBytes,
    OwnersTools,
    Told,
    Wait,
    WorkspaceName,
    of_run,
)
from controlplane_client import AsyncRun, WaitTimeout

LOOK_AGAIN_SECONDS = 2.0
FULL_SECONDS = 5.0
"""So long input waits for a command that does not read; then the model is told."""

RunId = Annotated[str, Field(description="The run_id that execute has answered.")]
Stream = Literal["stdout", "stderr", "pty"]


class CommandTools(OwnersTools):
    """Commands that run or have run, and their records."""

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
        run = await (await self.workspace(workspace)).spawn(
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
        told = of_run(run.info or await run.refresh())
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
        run = await self.run(run_id)
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
        return {**of_run(info), stream: part}

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
        run = await self.run(run_id)
        if text or (end and not signal):
            await run.write(text, end=end, timeout=FULL_SECONDS)
        elif end:
            await run.close_stdin()
        if signal is not None:
            await run.signal(signal)
        return of_run(await run.refresh())

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
        run = await self.run(run_id)
        told = of_run(run.info or await run.refresh())
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
