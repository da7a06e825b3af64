"""The proxy itself: takes connections, asks whose things they mean, and passes on what may pass.

Every wait has a limit but one: the streams of a running program may be silent for as long as the
program likes. Such a connection ends when the program ends, and when the client is gone, which is
looked for: a client that only has no more input is not gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import structlog

from workspaces.runtimes.docker.engine_proxy import http_wire as wire
from workspaces.runtimes.docker.engine_proxy.policy import (
    Action,
    EngineRequest,
    Refused,
    belongs,
    parse_request,
)

logger = structlog.get_logger(__name__)

_AWAY_SECONDS = 1.0
_NOT_FOUND = "No such container."
_FAILURES = (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError, wire.MalformedError)


@dataclass(frozen=True, slots=True)
class EngineProxyLimits:
    """Limits of the proxy; times are seconds.

    ``connections`` bounds everything, ``asking`` what is not (yet) the streams of a program, so
    that those who hold such streams keep nobody from asking. ``idle`` is how long a connection may
    wait for its (next) request to be complete, ``piece`` how long one piece of anything else may
    take, ``leaving`` how long a client may take to fetch the rest once its program has ended, and
    ``look`` how often it is looked whether a client without further input is still there.
    """

    connections: int = 4096
    asking: int = 256
    idle: float = 30.0
    piece: float = 60.0
    leaving: float = 60.0
    look: float = 5.0


class EngineProxy:
    """Serves one installation's part of one engine on a Unix socket."""

    def __init__(
        self, docker_host: str, instance_id: str, *, limits: EngineProxyLimits | None = None
    ) -> None:
        self._docker_host = docker_host
        self._instance_id = instance_id
        self._limits = limits or EngineProxyLimits()
        self._open = 0
        self._asking = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def open_connections(self) -> int:
        """How many connections are there now."""
        return self._open

    @contextlib.asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        """Serve on ``listener`` during the block; its end cuts off whoever is still there."""
        server = await asyncio.start_unix_server(
            self._accept, sock=listener, limit=wire.BUFFER_BYTES, backlog=1024
        )
        try:
            yield
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        client = _Client(reader, writer)
        full = self._open >= self._limits.connections or self._asking >= self._limits.asking
        self._open += 1
        self._asking += 1
        try:
            if full:
                logger.warning("engine_proxy_full", connections=self._open, asking=self._asking)
                await self._send_away(client)
            else:
                await self._serve(client)
        except asyncio.CancelledError:
            pass  # the proxy is being closed; nobody else cancels
        except _FAILURES as error:
            logger.info("engine_proxy_connection_ended", reason=type(error).__name__)
        finally:
            self._open -= 1
            self._asking -= 0 if client.streaming else 1
            writer.transport.abort()

    async def _send_away(self, client: _Client) -> None:
        """Say that there is no room, unless there is none even for that."""
        if self._open > self._limits.connections + self._limits.asking:
            return
        # What is not read when a connection is closed takes the answer along.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AWAY_SECONDS):
                await wire.read_request(client.reader)
        await self._say(client, 503, "Too many connections to the engine proxy.", close=True)

    async def _serve(self, client: _Client) -> None:
        close = False
        while not close:
            try:
                async with asyncio.timeout(self._limits.idle):
                    request = await wire.read_request(client.reader)
            except wire.MalformedError as error:
                await self._say(client, 400, f"The request is invalid: {error}.", close=True)
                return
            if request is None:
                return
            close = request.close
            try:
                wanted = parse_request(request.method, request.target, request.body)
                close = await self._serve_request(client, request.method, wanted, close)
            except Refused as refusal:
                if refusal.status == 403:
                    logger.warning(
                        "engine_proxy_refused", method=request.method, target=request.target
                    )
                # Whoever asks for such a thing may have meant the rest of it otherwise, too.
                close = close or refusal.status != 404
                await self._say(client, refusal.status, refusal.message, close=close)
            except (OSError, TimeoutError, EOFError, wire.MalformedError) as error:
                if client.begun:
                    raise
                logger.warning("engine_unreachable", reason=type(error).__name__)
                await self._say(client, 502, "The engine does not answer.", close=True)
                return

    async def _serve_request(
        self, client: _Client, method: str, wanted: EngineRequest, close: bool
    ) -> bool:
        """Do what is wanted; return whether the connection is used up."""
        action = wanted.action
        if action in (Action.PING, Action.VERSION):
            status, body = await self._ask(method, wanted.target())
        elif action is Action.INFO:
            # Of all that the engine tells about its machine only who it is.
            status, body = await self._ask(method, wanted.target())
            body = json.dumps({"ID": _object(body).get("ID", "")}).encode()
        elif action is Action.CONTAINER:
            status, body = 200, json.dumps(await self._container(wanted, wanted.subject)).encode()
        elif action is Action.EXEC_INSPECT:
            status, body = 200, json.dumps(await self._exec(wanted)).encode()
        elif action is Action.EXEC_CREATE:
            # By its id: the name may be another container's by now.
            found = await self._container(wanted, wanted.subject)
            status, body = await self._ask(method, wanted.target(str(found["Id"])), wanted.body)
        elif action is Action.EXEC_RESIZE:
            await self._exec(wanted)
            status, body = await self._ask(method, wanted.target())
        elif action is Action.ARCHIVE:
            found = await self._container(wanted, wanted.subject)
            await self._archive(client, wanted.target(str(found["Id"])))
            return True
        else:
            await self._exec(wanted)
            await self._start(client, wanted)
            return True
        await self._send(client, wire.answer_bytes(status, body, close=close))
        return close

    # ------------------------------------------------------------------------- whose things

    async def _container(self, wanted: EngineRequest, name: str) -> dict[str, Any]:
        """Return a container of this installation. What is another's is answered as not there."""
        status, body = await self._ask("GET", f"{wanted.version}/containers/{name}/json")
        found = _object(body)
        if status == 404 or (status == 200 and not belongs(found, self._instance_id)):
            raise Refused(404, _NOT_FOUND)
        if status != 200:
            raise Refused(502, "The engine did not describe the container.")
        return found

    async def _exec(self, wanted: EngineRequest) -> dict[str, Any]:
        """Return an exec in a container of this installation."""
        status, body = await self._ask("GET", f"{wanted.version}/exec/{wanted.subject}/json")
        found = _object(body)
        container = found.get("ContainerID")
        if status == 404 or (status == 200 and not isinstance(container, str)):
            raise Refused(404, "No such exec.")
        if status != 200:
            raise Refused(502, "The engine did not describe the exec.")
        await self._container(wanted, str(container))
        return found

    async def _ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        async with asyncio.timeout(self._limits.piece), self._engine() as (reader, writer):
            writer.write(wire.request_bytes(method, target, body))
            await writer.drain()
            answer = await wire.read_answer(reader)
            return answer.status, await wire.read_body(reader, answer)

    @contextlib.asynccontextmanager
    async def _engine(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await wire.connect(self._docker_host)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    # ------------------------------------------------------------------------- streams

    async def _archive(self, client: _Client, target: str) -> None:
        """Pass an archive on, whatever its size, as long as it moves."""
        limit = self._limits.piece
        async with self._engine() as (reader, writer):
            async with asyncio.timeout(limit):
                writer.write(wire.request_bytes("GET", target, b""))
                await writer.drain()
                answer = await wire.read_answer(reader)
            client.begun = True
            await self._send(client, answer.head)
            while True:
                async with asyncio.timeout(limit):
                    piece = await reader.read(wire.BUFFER_BYTES)
                if not piece:
                    break
                await self._send(client, piece)
            await self._leave(client)

    async def _start(self, client: _Client, wanted: EngineRequest) -> None:
        """Start an exec and connect the client with it until one of them is gone."""
        async with self._engine() as (reader, writer):
            async with asyncio.timeout(self._limits.piece):
                writer.write(wire.request_bytes("POST", wanted.target(), wanted.body, upgrade=True))
                await writer.drain()
                answer = await wire.read_answer(reader)
                # Engines of old answer 200 and upgrade all the same.
                refused = answer.status not in (101, 200)
                said = await wire.read_body(reader, answer) if refused else b""
            if refused:
                body = wire.answer_bytes(answer.status, said, close=True)
                await self._send(client, body)
                return
            client.begun = client.streaming = True
            self._asking -= 1
            await self._send(client, answer.head)
            await self._connected(client, reader, writer)

    async def _connected(
        self, client: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass both directions on until the program has ended or the client is gone."""
        output = asyncio.create_task(_pump(reader, client.writer))
        others = [
            asyncio.create_task(_pump_to_end(client.reader, writer)),
            # Not part of either pump: both may stand still because the other side takes nothing.
            asyncio.create_task(self._gone(client)),
        ]
        try:
            await asyncio.wait({output, others[1]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (output, *others):
                task.cancel()
            ended = await asyncio.gather(output, *others, return_exceptions=True)
        if ended[0] is None:
            await self._leave(client)

    async def _gone(self, client: _Client) -> None:
        while not client.gone():
            await asyncio.sleep(self._limits.look)

    async def _leave(self, client: _Client) -> None:
        """Let the client have the rest, then be rid of it."""
        async with asyncio.timeout(self._limits.leaving):
            await client.writer.drain()
            with contextlib.suppress(OSError):
                client.writer.write_eof()
            while not client.gone() and client.writer.transport.get_write_buffer_size():
                await asyncio.sleep(0.05)

    # ------------------------------------------------------------------------- answers

    async def _say(self, client: _Client, status: int, text: str, *, close: bool) -> None:
        await self._send(client, wire.answer_bytes(status, wire.message(text), close=close))
        if close:
            await self._leave(client)

    async def _send(self, client: _Client, data: bytes) -> None:
        client.writer.write(data)
        async with asyncio.timeout(self._limits.piece):
            await client.writer.drain()


class _Client:
    """A client's connection. ``begun``: the head of an answer has been sent, so no other may be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.begun = False
        self.streaming = False
        self._socket: socket.socket = writer.get_extra_info("socket")

    def gone(self) -> bool:
        """Whether the other end is closed, not only its writing half."""
        number = self._socket.fileno()
        if number < 0 or self.writer.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(number, 0)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(wire.BUFFER_BYTES):
        writer.write(piece)
        await writer.drain()


async def _pump_to_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await _pump(reader, writer)
        writer.write_eof()


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
