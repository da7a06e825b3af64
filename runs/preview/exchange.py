"""One client's connection: its requests one after the other, each passed on and answered.

Messages are parsed on both sides and written anew, so client and server cannot disagree about where
one ends. Bodies pass piece by piece: who sends waits for who takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from typing import cast

import h11
import structlog

from runs.preview.admission import Admission, Headers, Place
from runs.preview.message_heads import (
    RawHeaders,
    page_headers,
    request_headers,
    response_headers,
)
from runs.preview.preview_settings import PreviewSettings
from runs.preview.refusal_pages import PreviewRefused
from runs.preview.workspace_ports import PortClosed, PortConnection, WorkspacePorts, Workspaces

MAX_HEAD_BYTES = 64 * 1024
HIGH_BYTES = 256 * 1024
LINGER_SECONDS = 2.0
MAX_LINGER_BYTES = 1024 * 1024
_REPEATABLE = (b"GET", b"HEAD", b"OPTIONS")
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)

logger = structlog.get_logger(__name__)


class ClientGone(Exception):
    """Nobody is there to be answered."""


class ClientConnection(asyncio.Protocol):
    """The bytes from and to a client."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._lost = False
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._paused = False
        self.is_waiting = True
        """Whether no request is under way."""
        self.is_tunnel = False
        """Whether the end of what it sends is passed on, and does not mean that it has gone."""
        self.peer = ""
        self.is_proxy = False
        """Whether it may say for whom it asks."""

    # -------------------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve it."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(HIGH_BYTES)
        # A WebSocket may be silent for long; whoever has vanished must not keep it open.
        sock = transport.get_extra_info("socket")
        for level, option, value in _KEEP_ALIVE:
            sock.setsockopt(level, option, value)
        self.peer = str((transport.get_extra_info("peername") or [""])[0])
        self.is_proxy = self._hall.settings.trusts(self.peer)
        self._hall.arrived(self)
        self._task = self._loop.create_task(Exchange(self._hall, self).serve())
        self._task.add_done_callback(self._served)

    def data_received(self, data: bytes) -> None:
        """Keep what has come until it is read."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > HIGH_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._wake(self._readable)

    def eof_received(self) -> bool:
        """Know that it sends nothing more; while it waits for an answer it is gone."""
        self._ended = True
        self._wake(self._readable)
        if not self.is_tunnel and not self.is_waiting and self._task is not None:
            self._task.cancel()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is under way for it."""
        self._lost = self._ended = True
        self._wake(self._readable)
        self._wake(self._writable)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Wait with what is to be sent."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on."""
        self._paused = False
        self._wake(self._writable)

    # -------------------------------------------------------------------------- for the exchange

    async def read(self, seconds: float) -> bytes:
        """Return what has come, ``b""`` at the end. Raises ``TimeoutError``."""
        if not self._pieces and not self._ended:
            self._readable = self._loop.create_future()
            async with asyncio.timeout(seconds):
                await self._readable
        if not self._pieces:
            return b""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._size > HIGH_BYTES and self._transport is not None and not self._lost:
            self._transport.resume_reading()
        self._size = 0
        return data

    async def write(self, data: bytes, seconds: float) -> None:
        """Send, and wait until more may be sent. Raises ``ClientGone`` and ``TimeoutError``."""
        if self._lost or self._transport is None:
            raise ClientGone
        self._transport.write(data)
        while self._paused:
            self._writable = self._loop.create_future()
            async with asyncio.timeout(seconds):
                await self._writable
            if self._lost:
                raise ClientGone

    def write_eof(self) -> None:
        """Send nothing more."""
        if self._transport is not None and not self._lost and self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        """Close it, after what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close it so that what was sent cannot be taken for complete."""
        if self._transport is not None:
            self._transport.abort()

    def dismiss(self) -> None:
        """End what is under way."""
        if self._task is not None:
            self._task.cancel()

    def _served(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("preview_failed", exc_info=error)
            self.abort()
        self.close()
        self._hall.left(self)

    @staticmethod
    def _wake(waiting: asyncio.Future[None] | None) -> None:
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


class Hall:
    """What all connections share."""

    def __init__(self, settings: PreviewSettings) -> None:
        self.settings = settings
        self.admission = Admission(settings)
        self.workspaces = Workspaces(settings)
        self.clients: set[ClientConnection] = set()

    def arrived(self, client: ClientConnection) -> None:
        """Know of a client."""
        self.clients.add(client)

    def left(self, client: ClientConnection) -> None:
        """Know that it is gone."""
        self.clients.discard(client)


class Exchange:
    """The requests of one connection."""

    def __init__(self, hall: Hall, client: ClientConnection) -> None:
        self._hall = hall
        self._settings = hall.settings
        self._client = client
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def serve(self) -> None:
        """Answer one request after the other until there are no more."""
        try:
            await self._serve()
            await self._linger()
        except (ClientGone, TimeoutError):
            pass
        except asyncio.CancelledError:
            self._client.abort()
            raise

    async def _serve(self) -> None:
        try:
            while (request := await self._next_request()) is not None:
                self._client.is_waiting = False
                await self._answer(request)
                self._client.is_waiting = True
                if h11.DONE is not self._http.our_state or h11.DONE is not self._http.their_state:
                    break
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            refused = PreviewRefused(
                error.error_status_hint, "bad-request", f"This is no HTTP that is taken: {error}."
            )
            await self._refuse(refused, "")

    async def _next_request(self) -> h11.Request | None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.idle
        begun = False
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            data = await self._client.read(max(0.0, until - loop.time()))
            if not data:
                return None
            if not begun:
                # For all of a head: one byte now and then buys no time.
                begun, until = True, loop.time() + self._settings.head
            self._http.receive_data(data)

    async def _linger(self) -> None:
        """Take what is still being sent for a moment: a reset would lose the answer."""
        if self._http.their_state is not h11.SEND_BODY and self._http.their_state is not h11.ERROR:
            return
        self._client.is_tunnel = True
        self._client.write_eof()
        taken = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while taken < MAX_LINGER_BYTES and (data := await self._client.read(60)):
                    taken += len(data)

    # ----------------------------------------------------------------------------- one request

    async def _answer(self, request: h11.Request) -> None:
        headers = _joined(request.headers)
        try:
            await self._pass_on(request, headers)
        except PreviewRefused as error:
            await self._refuse(error, headers.get("accept", ""))

    async def _pass_on(self, request: h11.Request, headers: Headers) -> None:
        method, target = request.method.decode(), request.target.decode("latin-1")
        place = self._hall.admission.place(headers.get("host", ""))
        if not target.startswith("/"):
            raise PreviewRefused(400, "bad-request", "The target of a request is a path.")
        opened = self._hall.admission.opened(place, method, target)
        if opened is not None:
            shown = [("Location", opened.location), ("Set-Cookie", opened.cookie)]
            shown += [("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer")]
            await self._say(303, shown, b"")
            return
        grant = self._hall.admission.admit(place, method, headers)
        ports = self._hall.workspaces.of(place)
        upgrade = _upgrade(request, headers)
        head = h11.Request(
            method=request.method,
            target=self._hall.admission.target(target).encode("latin-1"),
            headers=self._head(request, place, upgrade),
        )
        connection = ports.kept(place.port)
        while True:
            fresh = connection is None
            if connection is None:
                connection = await ports.connect(place.port, grant.owner)
            passing = _Passing(self._settings, self._hall.admission, self._client, self._http)
            try:
                done = await passing.run(request, head, connection, upgrade=upgrade)
            except PortClosed:
                ports.discard(connection)
                self._may_answer()
                # The server may have closed a kept one just when it was to be used again.
                if not fresh and request.method in _REPEATABLE and not passing.has_body:
                    connection = None
                    continue
                raise PreviewRefused(
                    502,
                    "preview-server-closed",
                    f"The server on port {place.port} has closed the connection unanswered.",
                ) from None
            except BaseException:
                ports.discard(connection)
                raise
            break
        self._settle(ports, place, connection, done)

    def _settle(
        self, ports: WorkspacePorts, place: Place, connection: PortConnection, done: bool
    ) -> None:
        http = connection.http
        sound = done and http.our_state is h11.DONE and http.their_state is h11.DONE
        if sound and connection.is_idle and not http.trailing_data[0]:
            http.start_next_cycle()
            ports.keep(place.port, connection)
        else:
            ports.discard(connection)

    def _may_answer(self) -> None:
        """Raise ``ClientGone`` where an answer has begun: it can only be cut off."""
        if self._http.our_state not in (h11.SEND_RESPONSE, h11.IDLE):
            self._client.abort()
            raise ClientGone

    def _head(self, request: h11.Request, place: Place, upgrade: bytes) -> RawHeaders:
        host = next(value for name, value in request.headers if name == b"host")
        peers = [value for name, value in request.headers if name == b"x-forwarded-for"]
        peers = [*peers, self._client.peer.encode()] if self._client.is_proxy else []
        forwarded = {
            b"x-forwarded-for": b", ".join(peers) or self._client.peer.encode(),
            b"x-forwarded-host": host,
            b"x-forwarded-proto": self._settings.scheme.encode(),
        }
        return request_headers(
            request.headers,
            self._hall.admission,
            owner_header=self._settings.owner_header,
            upgrade=upgrade,
            forwarded=forwarded,
        )

    async def _refuse(self, refused: PreviewRefused, accepted: str) -> None:
        self._may_answer()
        headers, body = refused.answer(accepted)
        await self._say(refused.status, headers, body)

    async def _say(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        shown = [*headers, ("Content-Length", str(len(body)))]
        if not self._body_is_read():
            shown.append(("Connection", "close"))
        out = self._http.send(h11.Response(status_code=status, headers=shown)) or b""
        # To HEAD only the head is answered; h11 knows.
        out += self._http.send(h11.Data(data=body)) or b""
        out += self._http.send(h11.EndOfMessage()) or b""
        await self._client.write(out, self._settings.stall)

    def _body_is_read(self) -> bool:
        """Tell whether the request is complete, so that another one may follow."""
        if self._http.their_state is h11.SEND_BODY:
            with contextlib.suppress(h11.RemoteProtocolError):
                self._http.next_event()
        return self._http.their_state is h11.DONE


class _Passing:
    """One request on its way to one connection, and its answer on the way back."""

    def __init__(
        self,
        settings: PreviewSettings,
        admission: Admission,
        client: ClientConnection,
        http: h11.Connection,
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._client = client
        self._http = http
        self.has_body = False

    async def run(
        self,
        request: h11.Request,
        head: h11.Request,
        connection: PortConnection,
        *,
        upgrade: bytes,
    ) -> bool:
        """Pass both on; tell whether the connection may be used again.

        Raises ``PortClosed`` when the server closes it, ``ClientGone``, ``PreviewRefused``.
        """
        out = connection.http.send(head) or b""
        event = self._http.next_event() if self._http.their_state is h11.SEND_BODY else None
        if event is None or isinstance(event, h11.EndOfMessage):
            out += connection.http.send(h11.EndOfMessage()) or b""
            await self._send(connection, out)
            return await self._answer(request, connection, None, upgrade)
        self.has_body = True
        await self._send(connection, out)
        body = asyncio.get_running_loop().create_task(self._body(connection, event))
        try:
            return await self._answer(request, connection, body, upgrade)
        finally:
            body.cancel()
            await asyncio.wait([body])
            if not body.cancelled():
                body.exception()

    async def _send(self, connection: PortConnection, data: bytes) -> None:
        try:
            await connection.write(data, self._settings.stall)
        except TimeoutError:
            raise PortClosed from None

    async def _body(self, connection: PortConnection, event: object) -> None:
        """Pass the body on; what goes wrong with the server is seen by who waits for its answer."""
        while True:
            if isinstance(event, h11.Data):
                await self._send(connection, connection.http.send(event) or b"")
            elif isinstance(event, h11.EndOfMessage):
                await self._send(connection, connection.http.send(h11.EndOfMessage()) or b"")
                return
            else:
                self._http.receive_data(data := await self._next_piece())
                if not data and self._http.their_state is not h11.DONE:
                    raise ClientGone
            event = self._http.next_event()

    async def _next_piece(self) -> bytes:
        seconds = self._settings.stall
        try:
            return await self._client.read(seconds)
        except TimeoutError:
            detail = f"Nothing more of the request has come for {seconds:g} seconds."
            raise PreviewRefused(408, "request-timeout", detail) from None

    async def _answer(
        self,
        request: h11.Request,
        connection: PortConnection,
        body: asyncio.Task[None] | None,
        upgrade: bytes,
    ) -> bool:
        settings, server = self._settings, connection.http
        out, begun = b"", False
        while True:
            try:
                event = server.next_event()
            except h11.RemoteProtocolError as error:
                if begun:
                    await self._cut_off(out)
                if connection.is_over or not server.trailing_data[0]:
                    raise PortClosed from None
                detail = f"The server's answer is no HTTP: {error}."
                raise PreviewRefused(502, "bad-answer", detail) from None
            if event is h11.NEED_DATA:
                if out:
                    await self._client.write(out, settings.stall)
                    out = b""
                server.receive_data(await self._more(connection, body, begun))
            elif isinstance(event, h11.InformationalResponse):
                if event.status_code == 101:
                    await self._tunnel(connection, event, upgrade)
                    return False
                if request.http_version == b"1.1":
                    told = h11.InformationalResponse(
                        status_code=event.status_code,
                        headers=response_headers(event.headers, self._admission),
                    )
                    out += self._http.send(told) or b""
            elif isinstance(event, h11.Response):
                begun = True
                out += self._begin(event, body)
            elif isinstance(event, h11.Data):
                piece = self._http.send(event) or b""
                out = out + piece if out else piece
                if len(out) >= MAX_HEAD_BYTES:
                    await self._client.write(out, settings.stall)
                    out = b""
            elif isinstance(event, h11.EndOfMessage):
                out += self._http.send(h11.EndOfMessage()) or b""
                await self._client.write(out, settings.stall)
                return body is None or body.done()
            else:
                raise PortClosed

    def _begin(self, event: h11.Response, body: asyncio.Task[None] | None) -> bytes:
        headers = response_headers(event.headers, self._admission)
        headers += page_headers(headers)
        if body is not None and not body.done():
            # Who answers early may never take the rest.
            headers.append((b"connection", b"close"))
        told = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
        return self._http.send(told) or b""

    async def _more(
        self, connection: PortConnection, body: asyncio.Task[None] | None, begun: bool
    ) -> bytes:
        """Return what the server sends next; raise what the client has done wrong meanwhile."""
        seconds = self._settings.answer
        reading = asyncio.ensure_future(connection.read(_FOR_EVER))
        try:
            if body is not None:
                # One that is still coming keeps the server waiting; its own deadlines hold.
                await asyncio.wait([reading, body], return_when=asyncio.FIRST_COMPLETED)
                error = body.exception() if body.done() else None
                if error is not None and not isinstance(error, PortClosed):
                    raise error
            async with asyncio.timeout(seconds):
                return await reading
        except TimeoutError:
            if begun:
                self._client.abort()
                raise ClientGone from None
            raise PreviewRefused(
                504, "preview-server-silent", f"The server has not answered in {seconds:g} seconds."
            ) from None
        finally:
            reading.cancel()

    async def _cut_off(self, out: bytes) -> None:
        """Send what there is, and close so that it is not taken for all."""
        if out:
            await self._client.write(out, self._settings.stall)
        # Without chunks or a length only a reset tells.
        framed = self._http.their_http_version != b"1.0"
        if framed:
            self._client.close()
        else:
            self._client.abort()
        raise ClientGone

    async def _tunnel(
        self, connection: PortConnection, event: h11.InformationalResponse, upgrade: bytes
    ) -> None:
        """Pass bytes on as they come, until both sides have ended."""
        if not upgrade:
            detail = "The server has switched to a protocol that was not asked for."
            raise PreviewRefused(502, "bad-answer", detail)
        headers = response_headers(event.headers, self._admission, upgrade=upgrade)
        told = h11.InformationalResponse(status_code=101, headers=headers, reason=event.reason)
        self._client.is_tunnel = True
        out = (self._http.send(told) or b"") + connection.http.trailing_data[0]
        await self._client.write(out, self._settings.stall)
        early = self._http.trailing_data[0]
        if early:
            await self._send(connection, early)
        try:
            await _both(self._inward(connection), self._outward(connection))
        except (PortClosed, TimeoutError):
            self._client.abort()
            raise ClientGone from None

    async def _inward(self, connection: PortConnection) -> None:
        while data := await self._client.read(_FOR_EVER):
            await self._send(connection, data)
        connection.write_eof()

    async def _outward(self, connection: PortConnection) -> None:
        while data := await connection.read(_FOR_EVER):
            await self._client.write(data, self._settings.stall)
        self._client.write_eof()


_FOR_EVER = 10.0**8


async def _both(*ways: object) -> None:
    """Wait for both directions; the failure of one ends the other."""
    tasks = [asyncio.ensure_future(cast("asyncio.Future[None]", way)) for way in ways]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _joined(given: object) -> Headers:
    headers: Headers = {}
    for raw_name, raw_value in cast("list[tuple[bytes, bytes]]", given):
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def _upgrade(request: h11.Request, headers: Headers) -> bytes:
    """Return the protocol that a request wants to switch to, where that is passed on."""
    asked = headers.get("upgrade", "").strip().lower()
    words = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    if asked != "websocket" or "upgrade" not in words or request.method != b"GET":
        return b""
    return b"websocket"
