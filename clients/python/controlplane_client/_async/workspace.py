"""One workspace: its life, its commands."""

from __future__ import annotations

import base64
import codecs
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from controlplane_client._async.connection import AsyncConnection
from controlplane_client._async.files import AsyncFiles
from controlplane_client._async.platform import tell
from controlplane_client._async.run import AsyncRun
from controlplane_client.errors import INPUT_IS_OVER, CommandFailed, Conflict, NotReady
from controlplane_client.models import (
    ExecResult,
    Port,
    PreviewLink,
    RunInfo,
    StreamEvent,
    WorkspaceInfo,
)

OUTPUT_BYTES = 1024 * 1024
"""How much of each output a result has; the record has all of it."""

_STDIN_BYTES = 512 * 1024
_LIVE = {"queued", "running"}


class AsyncWorkspace:
    """A workspace of the owner."""

    def __init__(
        self, connection: AsyncConnection, workspace_id: str, info: WorkspaceInfo | None = None
    ) -> None:
        self._connection = connection
        self._path = f"/v1/workspaces/{workspace_id}"
        self.id = workspace_id
        self.info = info
        """As it was last read; None when it was not yet."""
        self.files = AsyncFiles(connection, workspace_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def refresh(self) -> WorkspaceInfo:
        """Read its current state."""
        told = await self._connection.json("GET", self._path, repeatable=True)
        self.info = WorkspaceInfo.of(told)
        return self.info

    # ------------------------------------------------------------ commands

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        changes: bool = False,
        check: bool = False,
    ) -> ExecResult:
        """Execute a command and wait for its end. It is executed once, even if a connection breaks.

        A string is executed by ``bash -lc``, a list is a program and its arguments. After
        ``timeout`` seconds it is ended, and ``error_code`` is ``run-timeout``. ``on_stdout`` and
        ``on_stderr`` get its output as it comes. With ``changes`` its record has what it changed
        in the working tree. With ``check``, raises ``CommandFailed`` unless the exit code is 0.
        """
        content = stdin.encode() if isinstance(stdin, str) else stdin
        body = _exec_body(command, cwd, env, timeout, changes=changes)
        if on_stdout is None and on_stderr is None and len(content or b"") <= _STDIN_BYTES:
            result = await self._exec_at_once(body, content)
        else:
            result = await self._exec_followed(body, content, on_stdout, on_stderr)
        if check and not result.ok:
            raise CommandFailed(result)
        return result

    async def _exec_at_once(self, body: dict[str, Any], stdin: bytes | None) -> ExecResult:
        if stdin is not None:
            body["stdinBase64"] = base64.b64encode(stdin).decode()
        told = await self._post_exec(body)
        if told["status"] not in _LIVE:
            return ExecResult.of(told)
        # The service was restarted meanwhile; the command went on.
        run = AsyncRun(self._connection, told["runId"])
        info = await run.wait()
        stdout, stderr = await run.scrollback("stdout"), await run.scrollback("stderr")
        longer = max(len(stdout), len(stderr)) > OUTPUT_BYTES
        return ExecResult.of_run(
            info, stdout[:OUTPUT_BYTES], stderr[:OUTPUT_BYTES], truncated=longer
        )

    async def _exec_followed(
        self,
        body: dict[str, Any],
        stdin: bytes | None,
        on_stdout: Callable[[str], object] | None,
        on_stderr: Callable[[str], object] | None,
    ) -> ExecResult:
        long = stdin is not None and len(stdin) > _STDIN_BYTES
        if stdin is not None and not long:
            body["stdinBase64"] = base64.b64encode(stdin).decode()
        run = await self._spawned({**body, **({"openStdin": True} if long else {})})
        if long:
            try:
                await run.write(stdin or b"", end=True)
            except Conflict as problem:
                # It ended, or its input was closed, with some of it unread, as with any pipe.
                if problem.code not in INPUT_IS_OVER:
                    raise
        written = {"stdout": _Written(on_stdout), "stderr": _Written(on_stderr)}
        async with aclosing(run.follow()) as events:
            async for event in events:
                if event.stream in written:
                    await tell(*written[event.stream].more(event.content))
        for each in written.values():
            await tell(*each.more(b"", end=True))
        info = run.info if run.info is not None and run.info.ended else await run.refresh()
        return ExecResult.of_run(
            info,
            bytes(written["stdout"].kept),
            bytes(written["stderr"].kept),
            truncated=any(each.truncated for each in written.values()),
        )

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        terminal: tuple[int, int] | None = None,
        timeout: float | None = None,
        changes: bool = False,
    ) -> AsyncRun:
        """Start a command in the background and return its run at once.

        With ``stdin`` it reads what ``Run.write`` sends. ``terminal`` is the size (columns, rows)
        of a terminal for it, which implies ``stdin``.
        """
        body = _exec_body(command, cwd, env, timeout, changes=changes)
        if stdin or terminal is not None:
            body["openStdin"] = True
        if terminal is not None:
            body["terminal"] = {"columns": terminal[0], "rows": terminal[1]}
        return await self._spawned(body)

    async def _spawned(self, body: dict[str, Any]) -> AsyncRun:
        info = RunInfo.of(await self._post_exec({**body, "background": True}))
        return AsyncRun(self._connection, info.id, info)

    async def _post_exec(self, body: dict[str, Any]) -> Any:
        # Under the same key it is executed once, however often it is asked for.
        key = {"idempotency-key": str(uuid.uuid4())}
        return await self._connection.json(
            "POST", f"{self._path}/exec", body, repeatable=True, headers=key
        )

    async def run_prompt(
        self, prompt: str, *, harness: str, timeout: float | None = None
    ) -> AsyncRun:
        """Have a harness of the blueprint work on a prompt; return the run at once."""
        body: dict[str, Any] = {"workspaceId": self.id, "harnessId": harness, "prompt": prompt}
        if timeout is not None:
            body["timeLimitMs"] = max(1, round(timeout * 1000))
        info = RunInfo.of(await self._connection.json("POST", "/v1/runs", body))
        return AsyncRun(self._connection, info.id, info)

    async def runs(
        self, *, status: str | None = None, mode: str | None = None
    ) -> AsyncIterator[RunInfo]:
        """Yield its runs, newest first; boot runs only with ``mode="boot"``."""
        cursor = None
        while True:
            page = await self._connection.json(
                "GET",
                "/v1/runs",
                repeatable=True,
                workspaceId=self.id,
                status=status,
                mode=mode,
                cursor=cursor,
                limit=100,
            )
            for item in page["items"]:
                yield RunInfo.of(item)
            cursor = page.get("nextCursor")
            if cursor is None:
                return

    async def ports(self) -> list[Port]:
        """Return the ports on which something listens."""
        told = await self._connection.json("GET", f"{self._path}/ports", repeatable=True)
        return [
            Port(each["port"], each["address"], each.get("pid"), each.get("process"))
            for each in told["items"]
        ]

    async def link(self, port: int, path: str = "/") -> PreviewLink:
        """Return a link that shows what listens on a port. Whoever has it can use it.

        Nothing needs to listen there yet. ``path`` is the page that it opens.
        """
        told = await self._connection.json(
            "POST", f"{self._path}/ports/{port}/links", {"path": path}, repeatable=True
        )
        return PreviewLink.of(told)

    # ------------------------------------------------------------ life

    async def follow(
        self, after: str | None = None, *, timeout: float | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield its status, its events and the output of its builds and boots, live.

        It ends when the workspace is deleted. ``after`` is as with ``Run.follow``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        async with aclosing(
            self._connection.events(f"{self._path}/stream", after=after, deadline=deadline)
        ) as events:
            async for event in events:
                if event.type in {"status", "end"}:
                    self.info = WorkspaceInfo.of(event.data)
                yield event

    async def wait_ready(
        self,
        *,
        timeout: float | None = None,
        on_output: Callable[[str], object] | None = None,
        on_status: Callable[[WorkspaceInfo], object] | None = None,
    ) -> WorkspaceInfo:
        """Wait until it is ready; raises ``NotReady`` when it ends instead.

        ``on_output`` gets what build and boot print until then, as far as it is recorded by then
        (``follow`` has all of it), ``on_status`` gets each change of status.
        """
        texts: defaultdict[str | None, codecs.IncrementalDecoder] = defaultdict(
            lambda: codecs.getincrementaldecoder("utf-8")("replace")
        )
        first = "latest" if on_output is None else None
        async with aclosing(self.follow(first, timeout=timeout)) as events:
            async for event in events:
                if event.type == "output":
                    await tell(on_output, texts[event.stream].decode(event.content))
                elif event.type in {"status", "end"}:
                    info = WorkspaceInfo.of(event.data)
                    await tell(on_status, info)
                    if info.status == "ready":
                        return info
                    if info.status not in _LIVE:
                        raise NotReady(info)
        raise NotReady(await self.refresh())

    async def _wait_until(self, *statuses: str, timeout: float | None) -> WorkspaceInfo:
        async with aclosing(self.follow("latest", timeout=timeout)) as events:
            async for event in events:
                if event.type in {"status", "end"}:
                    info = WorkspaceInfo.of(event.data)
                    if info.status in statuses:
                        return info
        return await self.refresh()

    async def stop(self, *, wait: bool = True, timeout: float | None = None) -> WorkspaceInfo:
        """Stop it: its programs are ended, records completed, its container removed."""
        told = await self._connection.json("POST", f"{self._path}/stop", {}, repeatable=True)
        self.info = WorkspaceInfo.of(told)
        if wait:
            ended = ("stopped", "cancelled", "failed", "deleted")
            return await self._wait_until(*ended, timeout=timeout)
        return self.info

    async def start(
        self,
        *,
        relation: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
        on_output: Callable[[str], object] | None = None,
        on_status: Callable[[WorkspaceInfo], object] | None = None,
    ) -> WorkspaceInfo:
        """Start it again: ``resume`` (the default), ``retry`` or ``rebuild``."""
        body = {} if relation is None else {"relation": relation}
        await self._connection.json("POST", f"{self._path}/start", body)
        if wait:
            return await self.wait_ready(timeout=timeout, on_output=on_output, on_status=on_status)
        return await self.refresh()

    async def delete(self, *, wait: bool = True, timeout: float | None = None) -> WorkspaceInfo:
        """Delete it with its container and volumes; its records stay readable."""
        told = await self._connection.json("DELETE", self._path, repeatable=True)
        self.info = WorkspaceInfo.of(told)
        return await self._wait_until("deleted", timeout=timeout) if wait else self.info

    async def set_ttl(self, seconds: int) -> WorkspaceInfo:
        """Stop it that many seconds from now, and after each later start."""
        body = {"ttlSeconds": seconds}
        told = await self._connection.json("PATCH", self._path, body, repeatable=True)
        self.info = WorkspaceInfo.of(told)
        return self.info

    async def rename(self, name: str) -> None:
        """Change its name."""
        body = {"name": name}
        await self._connection.json("PATCH", f"{self._path}/name", body, repeatable=True)

    async def events(self) -> list[dict[str, Any]]:
        """Return its events, newest first, as the API has them."""
        found, cursor = [], None
        while True:
            page = await self._connection.json(
                "GET", f"{self._path}/events", repeatable=True, cursor=cursor, limit=200
            )
            found += page["items"]
            cursor = page.get("nextCursor")
            if cursor is None:
                return found


class _Written:
    """What one output of a command has had so far."""

    def __init__(self, callback: Callable[[str], object] | None) -> None:
        self._callback = callback
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.kept = bytearray()
        self.truncated = False

    def more(
        self, content: bytes, *, end: bool = False
    ) -> tuple[Callable[[str], object] | None, str]:
        """Add bytes; return whom to tell what."""
        room = OUTPUT_BYTES - len(self.kept)
        self.kept += content[:room]
        self.truncated = self.truncated or len(content) > room
        text = self._decoder.decode(content, end)
        return (self._callback if text else None), text


def _exec_body(
    command: str | Sequence[str],
    cwd: str | None,
    env: Mapping[str, str] | None,
    timeout: float | None,
    *,
    changes: bool,
) -> dict[str, Any]:
    body: dict[str, Any] = {"command": command if isinstance(command, str) else list(command)}
    if cwd is not None:
        body["cwd"] = cwd
    if env:
        body["env"] = dict(env)
    if timeout is not None:
        body["timeLimitMs"] = max(1, round(timeout * 1000))
    if changes:
        body["changes"] = True
    return body
