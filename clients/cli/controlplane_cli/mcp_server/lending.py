"""The tools on the loopback of one workspace, which needs no network for it.

A relay runs in the workspace as a command, and its pipes are the only way: what passes is in the
record of that run, nothing of this machine is opened, and it ends when this process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from controlplane_cli.contexts import Context
from controlplane_cli.mcp_server.relay import HEAD, PIECE
from controlplane_client import AsyncClient, AsyncRun, AsyncWorkspace, ControlPlaneError

MOST_CONNECTIONS = 256
"""How many are passed on at a time; more are closed at once."""
_Send = Callable[[int, bytes], Awaitable[None]]
_RELAY = Path(__file__).with_name("relay.py")


class RelayEnded(Exception):
    """The relay in the workspace is over, and why."""


class Frames:
    """Takes a stream of bytes apart, of which the workspace may have made anything."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, content: bytes) -> Iterator[tuple[int, bytes]]:
        """Give the frames that are complete now; raises ``RelayEnded`` for what is none."""
        self._rest += content
        while len(self._rest) >= HEAD.size:
            number, length = HEAD.unpack_from(self._rest)
            if length > PIECE:
                raise RelayEnded("what comes from the workspace makes no sense")
            end = HEAD.size + length
            if len(self._rest) < end:
                return
            content, self._rest = self._rest[HEAD.size : end], self._rest[end:]
            yield number, content


class Lent:
    """A server at a local socket, as a port of a workspace."""

    def __init__(self, workspace: AsyncWorkspace, port: int, place: str) -> None:
        self._workspace = workspace
        self._port = port
        self._place = place
        self._open: dict[int, asyncio.StreamWriter] = {}
        self._half: set[int] = set()
        """Connections of which one side has said all, and the other side may say more."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, ready: Callable[[], None]) -> None:
        """Pass on until cancelled; raises ``RelayEnded``.

        A relay that reached the time limit of runs is started again: each request of the protocol
        stands for itself.
        """
        while True:
            command = ["python3", "-c", _RELAY.read_text(), str(self._port)]
            run = await self._workspace.spawn(command, stdin=True)
            try:
                await self._relayed(run, ready)
            finally:
                for task in self._tasks:
                    task.cancel()
                with contextlib.suppress(ControlPlaneError):
                    await run.cancel()

    async def _relayed(self, run: AsyncRun, ready: Callable[[], None]) -> None:
        frames, said = Frames(), b""
        for writer in self._open.values():
            writer.close()
        self._open.clear()
        self._half.clear()
        lock = asyncio.Lock()
        async with run.attach() as attached:

            async def send(number: int, content: bytes) -> None:
                async with lock:
                    await attached.write(HEAD.pack(number, len(content)) + content)

            async for part in attached.output():
                if part.stream == "stderr":
                    said = (said + part.content)[-2000:]
                    continue
                for number, content in frames.feed(part.content):
                    if number == 0:
                        ready()
                    else:
                        await self._got(number, content, send)
            if attached.end is None or attached.end.error_code != "run-timeout":
                raise RelayEnded(said.decode("utf-8", "replace").strip() or f"see run {run.id}")

    async def _got(self, number: int, content: bytes, send: _Send) -> None:
        writer = self._open.get(number)
        if writer is None:
            if not content:
                self._half.discard(number)
                return
            if number in self._half:
                return  # it was sent before the end of the connection was known there
            if len(self._open) >= MOST_CONNECTIONS:
                self._half.add(number)
                await send(number, b"")
                return
            reader, writer = await asyncio.open_unix_connection(self._place)
            self._open[number] = writer
            task = asyncio.create_task(self._answered(number, reader, send))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(ConnectionError):
            if content:
                writer.write(content)
                await writer.drain()
            else:
                self._half.add(number)
                writer.write_eof()

    async def _answered(self, number: int, reader: asyncio.StreamReader, send: _Send) -> None:
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65536):
                await send(number, part)
        writer = self._open.pop(number)
        self._half ^= {number}
        await send(number, b"")
        writer.close()


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would raise them once more before the relay is ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def serve_inside(
    app: ASGIApp, workspace: AsyncWorkspace, port: int, ready: Callable[[], None]
) -> None:
    """Serve on a port of the workspace's loopback until told to end; raises ``RelayEnded``."""
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="svc-mcp-") as folder:  # others cannot look into it
        place = str(Path(folder) / "socket")
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(place)
            config = uvicorn.Config(
                app, log_level="warning", access_log=False, timeout_graceful_shutdown=1
            )
            server = _Server(config)
            serving = asyncio.create_task(server.serve(sockets=[opened]))
            lending = asyncio.create_task(Lent(workspace, port, place).serve(ready))
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, lending.cancel)
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    await lending
            finally:
                server.should_exit = True
                await serving


def run_inside(
    context: Context, workspace_id: str, app: ASGIApp, port: int, ready: Callable[[], None]
) -> None:
    """Serve inside a workspace of the context until told to end; raises ``RelayEnded``."""

    async def serve() -> None:
        async with AsyncClient(context.base_url, context.owner) as client:
            await serve_inside(app, client.workspace(workspace_id), port, ready)

    asyncio.run(serve())
