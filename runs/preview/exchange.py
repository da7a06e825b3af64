"""One client's connection: its requests one after the other, each passed on and answered."""

from __future__ import annotations

import asyncio
import contextlib
import http
from collections.abc import Coroutine
from typing import Any

from runs.preview.admission import Admission, Headers, Place
from runs.preview.client_connection import ClientConnection, ClientGone
from runs.preview.http_messages import (
    BadMessage,
    RawHeaders,
    RequestHead,
    end_of_head,
    parse_request,
    request_body,
    request_bytes,
    response_bytes,
)
from runs.preview.message_heads import request_headers
from runs.preview.passing import Passing, RequestBody
from runs.preview.preview_settings import PreviewSettings
from runs.preview.refusal_pages import PreviewRefused
from runs.preview.server_connection import PortClosed, ServerConnection
from runs.preview.unadmitted import Unadmitted
from runs.preview.workspace_ports import WorkspacePorts, Workspaces

LINGER_SECONDS = 2.0
MAX_LINGER_BYTES = 1024 * 1024
_BLANK = 32
_REPEATABLE = (b"GET", b"HEAD", b"OPTIONS")


class SharedByConnections:
    """What all connections share."""

    def __init__(self, settings: PreviewSettings) -> None:
        self.settings = settings
        self.admission = Admission(settings)
        self.workspaces = Workspaces(settings)
        self.clients: set[ClientConnection] = set()
        self._unadmitted = Unadmitted(settings.max_unadmitted, settings.max_unadmitted_per_address)

    def arrived(self, client: ClientConnection) -> bytes | None:
        """Know of a client; return an answer for one that is not served."""
        self.clients.add(client)
        # Behind a proxy everybody has its address.
        address = None if client.is_proxy else client.peer
        if not self._unadmitted.add(client, address):
            refused = PreviewRefused(
                429,
                "preview-too-many-connections",
                "Too many connections from this address have not shown a valid link yet.",
                retry=1,
            )
            headers, body = refused.answer("")
            return _answer_bytes(refused.status, headers, body, lasts=False)
        return None

    def admitted(self, client: ClientConnection) -> None:
        """Know that a client has shown what is valid."""
        self._unadmitted.discard(client)

    def left(self, client: ClientConnection) -> None:
        """Know that it is gone."""
        self.clients.discard(client)
        self._unadmitted.discard(client)

    def serve(self, client: ClientConnection) -> Coroutine[Any, Any, None]:
        """Answer its requests."""
        return Exchange(self, client).serve()


class Exchange:
    """The requests of one connection."""

    def __init__(self, shared: SharedByConnections, client: ClientConnection) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._client = client
        self._rest = b""
        """What has come and belongs to no request that was answered."""
        self._unread = False
        """Whether the client may still be sending what nobody takes."""

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
                lasts = await self._answer(request)
                self._client.is_waiting = True
                if not lasts:
                    return
        except BadMessage as error:
            self._unread = True
            detail = f"The request is not valid HTTP: {error}."
            headers, body = PreviewRefused(error.status, "bad-request", detail).answer("")
            out = _answer_bytes(error.status, headers, body, lasts=False)
            await self._client.write(out, self._settings.stall)

    async def _next_request(self) -> RequestHead | None:
        data, self._rest = self._rest.lstrip(b"\r\n"), b""
        if not data:
            data = (await self._client.read(self._settings.idle)).lstrip(b"\r\n")
        seen, until = 0, 0.0
        while (end := end_of_head(data, seen)) < 0:
            if data and data[0] <= _BLANK:
                raise BadMessage("the first line is not one of a request")
            # For all of a head: one byte now and then buys no time.
            now = asyncio.get_running_loop().time()
            until = until or now + self._settings.head
            more = await self._client.read(max(0.0, until - now))
            if not more:
                return None
            seen = len(data)
            data = data + more if data else more.lstrip(b"\r\n")
        self._rest = data[end:]
        return parse_request(data[:end] if self._rest else data)

    async def _linger(self) -> None:
        """Take what is still being sent for a moment: a reset would lose the answer."""
        if not self._unread:
            return
        self._client.is_tunnel = True
        self._client.write_eof()
        taken = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while taken < MAX_LINGER_BYTES and (data := await self._client.read(60)):
                    taken += len(data)

    # ----------------------------------------------------------------------------- one request

    async def _answer(self, request: RequestHead) -> bool:
        """Answer a request; tell whether another one may follow."""
        headers = _joined(request.headers)
        rest, self._rest = self._rest, b""
        body = RequestBody(self._client, request_body(request), rest, self._settings.stall)
        try:
            lasts = await self._pass_on(request, headers, body)
        except PreviewRefused as error:
            shown, content = error.answer(headers.get("accept", ""))
            lasts = await self._say(request, body, error.status, shown, content)
        self._rest = body.rest
        self._unread = not body.done
        return lasts and body.done

    async def _pass_on(self, request: RequestHead, headers: Headers, body: RequestBody) -> bool:
        method, target = request.method.decode(), request.target.decode("latin-1")
        admission = self._shared.admission
        place = admission.place(headers.get("host", ""))
        if not target.startswith("/"):
            raise PreviewRefused(400, "bad-request", "The target of a request must be a path.")
        opened = admission.opened(place, method, target)
        if opened is not None:
            self._shared.admitted(self._client)
            shown = [("Location", opened.location), ("Set-Cookie", opened.cookie)]
            shown += [("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer")]
            return await self._say(request, body, 303, shown, b"")
        grant = admission.admit(place, method, headers)
        self._shared.admitted(self._client)
        ports = self._shared.workspaces.of(place)
        upgrade = _upgrade(request, headers)
        head = request_bytes(
            request.method,
            admission.target(target).encode("latin-1"),
            self._head(request, place, upgrade),
        )
        connection = ports.kept(place.port)
        while True:
            fresh = connection is None
            if connection is None:
                connection = await ports.connect(place.port, grant.owner)
            passing = Passing(self._settings, admission, self._client, request, body)
            try:
                reusable = await passing.run(head, connection, upgrade)
            except PortClosed:
                ports.discard(connection)
                self._may_answer(passing)
                # The server may have closed a kept one just when it was to be used again.
                if not fresh and request.method in _REPEATABLE and not passing.took_body:
                    connection = None
                    continue
                raise PreviewRefused(
                    502,
                    "preview-server-closed",
                    f"The server on port {place.port} closed the connection without an answer.",
                ) from None
            except (PreviewRefused, BadMessage):
                ports.discard(connection)
                self._may_answer(passing)
                raise
            except BaseException:
                ports.discard(connection)
                raise
            break
        self._settle(ports, place, connection, reusable)
        return passing.lasts

    @staticmethod
    def _settle(
        ports: WorkspacePorts, place: Place, connection: ServerConnection, reusable: bool
    ) -> None:
        if reusable:
            ports.keep(place.port, connection)
        else:
            ports.discard(connection)

    def _may_answer(self, passing: Passing) -> None:
        """Raise ``ClientGone`` where an answer has begun: it can only be cut off."""
        if passing.begun:
            self._client.abort()
            raise ClientGone

    def _head(self, request: RequestHead, place: Place, upgrade: bytes) -> RawHeaders:
        host = next((value for name, value in request.headers if name == b"host"), b"")
        peers = [value for name, value in request.headers if name == b"x-forwarded-for"]
        peers = [*peers, self._client.peer.encode()] if self._client.is_proxy else []
        forwarded = {
            b"x-forwarded-for": b", ".join(peers) or self._client.peer.encode(),
            b"x-forwarded-host": host,
            b"x-forwarded-proto": self._settings.scheme.encode(),
        }
        return request_headers(
            request.headers,
            self._shared.admission,
            owner_header=self._settings.owner_header,
            upgrade=upgrade,
            forwarded=forwarded,
        )

    async def _say(
        self,
        request: RequestHead,
        body: RequestBody,
        status: int,
        headers: list[tuple[str, str]],
        content: bytes,
    ) -> bool:
        """Answer by ourselves; tell whether another request may follow."""
        if not body.done:
            with contextlib.suppress(BadMessage):
                body.take()
        lasts = request.lasts and body.done
        out = _answer_bytes(
            status, headers, content, lasts=lasts, only_head=request.method == b"HEAD"
        )
        await self._client.write(out, self._settings.stall)
        return lasts


def _answer_bytes(
    status: int,
    headers: list[tuple[str, str]],
    content: bytes,
    *,
    lasts: bool,
    only_head: bool = False,
) -> bytes:
    shown = [*headers, ("Content-Length", str(len(content)))]
    if not lasts:
        shown.append(("Connection", "close"))
    raw = [(name.encode("ascii"), value.encode("latin-1")) for name, value in shown]
    reason = http.HTTPStatus(status).phrase.encode()
    return response_bytes(status, reason, raw) + (b"" if only_head else content)


def _joined(given: RawHeaders) -> Headers:
    headers: Headers = {}
    for raw_name, raw_value in given:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def _upgrade(request: RequestHead, headers: Headers) -> bytes:
    """Return the protocol that a request wants to switch to, where that is passed on."""
    asked = headers.get("upgrade", "").strip().lower()
    if asked != "websocket" or request.method != b"GET":
        return b""
    return b"websocket" if b"upgrade" in request.words(b"connection") else b""
