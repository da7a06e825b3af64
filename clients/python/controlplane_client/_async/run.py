"""One run: its input, its end, its record."""

from __future__ import annotations

import base64
import codecs
import json
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any

from controlplane_client._async.attachment import AsyncAttachment
from controlplane_client._async.connection import AsyncConnection
from controlplane_client._async.platform import blocking, sleep, tell
from controlplane_client.errors import ControlPlaneError, Problem
from controlplane_client.local_files import CHUNK_BYTES
from controlplane_client.models import OutputPart, RunInfo, StreamEvent, Verified
from controlplane_client.record_check import check_export
from controlplane_client.retrying import seconds_before

_INPUT_BYTES = 256 * 1024


class AsyncRun:
    """A run of a workspace, running or ended."""

    def __init__(
        self, connection: AsyncConnection, run_id: str, info: RunInfo | None = None
    ) -> None:
        self._connection = connection
        self._path = f"/v1/runs/{run_id}"
        self._input_offset: int | None = None
        self.id = run_id
        self.info = info
        """As it was last read; None when it was not yet."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def refresh(self) -> RunInfo:
        """Read its current state."""
        self.info = RunInfo.of(await self._connection.json("GET", self._path, repeatable=True))
        return self.info

    async def follow(
        self, after: str | None = None, *, timeout: float | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield every event of its record, past and future, until its end.

        Broken connections are reopened, and nothing is missing or comes twice. The last event is
        ``end``. ``after`` is the ``id`` of the last event that you have, or ``latest``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        async with aclosing(
            self._connection.events(f"{self._path}/stream", after=after, deadline=deadline)
        ) as events:
            async for event in events:
                if event.type == "end":
                    self.info = RunInfo.of(event.data)
                yield event

    def attach(self, after: int | None = 0, *, after_stderr: int = 0) -> AsyncAttachment:
        """Return an attachment to its command over a WebSocket, for a ``with`` block.

        ``after`` is how many bytes of its output you have; None: only new output is sent. Needs
        ``controlplane-client[attach]``.
        """
        return AsyncAttachment(self._connection, self.id, after=after, after_stderr=after_stderr)

    async def wait(
        self,
        *,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        timeout: float | None = None,
    ) -> RunInfo:
        """Wait for its end; the callbacks get what it writes as it comes, from the beginning.

        Raises ``WaitTimeout`` after ``timeout`` seconds; the run goes on.
        """
        quiet = on_stdout is None and on_stderr is None
        told = {"stdout": on_stdout, "pty": on_stdout, "stderr": on_stderr}
        texts = {name: _decoder() for name in told}
        async with aclosing(self.follow("latest" if quiet else None, timeout=timeout)) as events:
            async for event in events:
                name = event.stream
                if name in told:
                    text = texts[name].decode(event.content)
                    if text:
                        await tell(told[name], text)
        for name, decoder in texts.items():
            text = decoder.decode(b"", True)
            if text:
                await tell(told[name], text)
        if self.info is None or not self.info.ended:
            return await self.refresh()
        return self.info

    async def write(
        self, data: bytes | str, *, end: bool = False, timeout: float | None = None
    ) -> None:
        """Give it input; ``end`` closes it. The run must be started with ``stdin=True``.

        Waits while the command does not read its input, at most ``timeout`` seconds: then it
        raises ``Problem`` with the code ``input-full``. Bytes are never sent to it twice, even if
        a request had to be repeated.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        content = data.encode() if isinstance(data, str) else data
        if self._input_offset is None:
            state = await self._input({"stdin": ""}, repeatable=True)
            self._input_offset = int(state["offset"])
        while True:
            part, content = content[:_INPUT_BYTES], content[_INPUT_BYTES:]
            body = {
                "stdinBase64": base64.b64encode(part).decode(),
                "offset": self._input_offset,
                **({"end": True} if end and not content else {}),
            }
            state = await self._input_with_room(body, deadline)
            self._input_offset = int(state["offset"])
            if not content:
                return

    async def _input_with_room(self, body: dict[str, Any], deadline: float | None) -> Any:
        while True:
            try:
                return await self._input(body, repeatable=True)
            except Problem as problem:
                in_time = deadline is None or time.monotonic() < deadline
                if problem.code != "input-full" or not in_time:
                    raise
                await sleep(seconds_before(1, problem.retry_after))

    async def close_stdin(self) -> None:
        """Tell it that there is no more input."""
        await self._input({"end": True}, repeatable=True)

    async def signal(self, name: str) -> None:
        """Send a signal to the process group of its command: ``INT``, ``TERM``, ``KILL`` …"""
        await self._input({"signal": name.removeprefix("SIG")})

    async def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal."""
        await self._input({"resize": {"columns": columns, "rows": rows}}, repeatable=True)

    async def _input(self, body: dict[str, Any], *, repeatable: bool = False) -> Any:
        return await self._connection.json(
            "POST", f"{self._path}/input", body, repeatable=repeatable
        )

    async def cancel(self) -> RunInfo:
        """End all its processes: TERM, then KILL. ``wait`` returns when they have ended."""
        body = {"status": "cancelled"}
        told = await self._connection.json("PATCH", self._path, body, repeatable=True)
        self.info = RunInfo.of(told)
        return self.info

    async def timeline(
        self, *, kinds: Iterable[str] = (), start: int = 0, end: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of its record in order; ``kinds``, ``start`` and ``end`` select."""
        names = ",".join(kinds) or None
        following: str | None = str(start)
        while following is not None:
            page = await self._connection.json(
                "GET",
                f"{self._path}/timeline",
                repeatable=True,
                kinds=names,
                fromSequence=following,
                toSequence=end,
                limit=1000,
            )
            for item in page["items"]:
                yield item
            following = page.get("nextFromSequence")

    async def scrollback(self, stream: str = "stdout") -> bytes:
        """Return what it wrote (``stdout``, ``stderr``, ``pty``) or read (``stdin``), all of it."""
        return await self._bytes("scrollback", accept="application/octet-stream", stream=stream)

    async def output(
        self, stream: str = "stdout", *, start: int = 0, limit: int = 1024 * 1024
    ) -> OutputPart:
        """Return at most ``limit`` bytes of a stream from byte ``start``, as recorded so far.

        ``next`` of the answer is where to continue. ``limit`` is at most 16 MiB.
        """
        told = await self._connection.json(
            "GET",
            f"{self._path}/scrollback",
            repeatable=True,
            stream=stream,
            fromOffset=start,
            limitBytes=limit,
        )
        return OutputPart.of(told)

    async def changes(self) -> dict[str, Any]:
        """Return the files that it changed and their ``diff``, as the API has them."""
        told: dict[str, Any] = await self._read("changes")
        return told

    async def loss(self) -> dict[str, Any]:
        """Return what is missing from its record; ``complete`` is true if nothing is."""
        told: dict[str, Any] = await self._read("loss")
        return told

    async def asciicast(self) -> str:
        """Return what it showed, for players: asciicast, version 3."""
        return (await self._bytes("export", format="asciicast")).decode()

    async def text(self) -> str:
        """Return its output without escape sequences."""
        return (await self._bytes("export", format="text")).decode("utf-8", "replace")

    async def in_toto(self) -> dict[str, Any]:
        """Return the signed statement about record, image and tree: in-toto in a DSSE envelope."""
        told: dict[str, Any] = json.loads(await self._bytes("export", format="in-toto"))
        return told

    async def otlp(self) -> dict[str, Any]:
        """Return the run and its processes as OpenTelemetry spans, in OTLP's JSON."""
        told: dict[str, Any] = json.loads(await self._bytes("export", format="otlp"))
        return told

    async def ocsf(self) -> AsyncIterator[dict[str, Any]]:
        """Yield its events in the Open Cybersecurity Schema Framework."""
        async for line in self._lines("ocsf"):
            yield json.loads(line)

    async def export(self) -> AsyncIterator[bytes]:
        """Yield the whole record with its proof, as lines of NDJSON."""
        async for line in self._lines("ndjson"):
            yield line

    async def _lines(self, format: str) -> AsyncIterator[bytes]:
        rest = b""
        async with aclosing(self._parts(format)) as parts:
            async for content in parts:
                *lines, rest = (rest + content).split(b"\n")
                for line in lines:
                    yield line + b"\n"

    async def _parts(self, format: str) -> AsyncGenerator[bytes, None]:
        part = b"\n"
        async with self._connection.answer(
            "GET", f"{self._path}/export", repeatable=True, streamed=True, format=format
        ) as answer:
            async for part in answer.aiter_bytes(CHUNK_BYTES):
                yield part
        if not part.endswith(b"\n"):
            raise ControlPlaneError("the export ended in the middle of a line")

    async def verify(self, public_key: str | None = None) -> Verified:
        """Download the record and check it here: chain, losses, seal and signature.

        ``public_key`` is the installation's, in base64, and must have signed it: a record that has
        not ended is not ok. Without it, the key in the record is used, which shows damage but not
        who signed.
        """
        # The check goes through it line by line, and a record may be larger than the memory.
        with tempfile.TemporaryFile() as file:
            async with aclosing(self._parts("ndjson")) as parts:
                async for part in parts:
                    await blocking(file.write, part)
            file.seek(0)
            return await blocking(check_export, file, public_key)

    async def _read(self, what: str) -> Any:
        return await self._connection.json("GET", f"{self._path}/{what}", repeatable=True)

    async def _bytes(self, what: str, *, accept: str = "*/*", **query: Any) -> bytes:
        async with self._connection.answer(
            "GET", f"{self._path}/{what}", repeatable=True, headers={"accept": accept}, **query
        ) as answer:
            return answer.content


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
