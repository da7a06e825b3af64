"""One request on its way to one server, and its answer on the way back.

Heads are read and written anew; bodies pass piece by piece, so who sends waits for who takes.
"""

from __future__ import annotations

import asyncio
from typing import cast

from runs.preview.admission import Admission
from runs.preview.client_connection import ClientConnection, ClientGone
from runs.preview.http_messages import (
    LAST_CHUNK,
    BadMessage,
    Body,
    RequestHead,
    ResponseHead,
    chunk,
    end_of_head,
    parse_response,
    response_body,
    response_bytes,
)
from runs.preview.message_heads import page_headers, response_headers
from runs.preview.preview_settings import PreviewSettings
from runs.preview.refusal_pages import PreviewRefused
from runs.preview.server_connection import PortClosed, ServerConnection

FOR_EVER = 10.0**8


class RequestBody:
    """What a client still sends of a request."""

    def __init__(self, client: ClientConnection, body: Body, rest: bytes, stall: float) -> None:
        self._client = client
        self._body = body
        self._stall = stall
        self._refusal: BadMessage | None = None
        self.rest = rest
        """What has come and was not read yet: of the body, or behind it."""

    @property
    def done(self) -> bool:
        """Whether all of it has been read."""
        return self._body.done

    @property
    def chunked(self) -> bool:
        """Whether it comes in chunks."""
        return self._body.chunked

    def take(self) -> bytes:
        """Return what of it has come. Raises ``BadMessage``."""
        content, self.rest = self._body.take(self.rest)
        return content

    async def more(self) -> None:
        """Wait until more has come. Raises ``ClientGone`` and ``PreviewRefused``."""
        try:
            data = await self._client.read(self._stall)
        except TimeoutError:
            detail = f"The rest of the request did not arrive within {self._stall:g} seconds."
            raise PreviewRefused(408, "request-timeout", detail) from None
        if not data:
            raise ClientGone
        self.rest = self.rest + data if self.rest else data


class Passing:
    """Passes one request on. ``run`` does it once."""

    def __init__(
        self,
        settings: PreviewSettings,
        admission: Admission,
        client: ClientConnection,
        request: RequestHead,
        body: RequestBody,
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._client = client
        self._request = request
        self._body = body
        self._sending: asyncio.Task[None] | None = None
        self.begun = False
        """Whether the client has been sent the beginning of an answer."""
        self.took_body = False
        """Whether some of the body is gone, so that the request cannot be sent again."""
        self.lasts = request.lasts
        """Whether the client's connection goes on afterwards."""

    async def run(self, head: bytes, connection: ServerConnection, upgrade: bytes) -> bool:
        """Pass both on; tell whether the connection may be used again.

        Raises ``PortClosed`` when the server closes it, ``ClientGone``, ``PreviewRefused``, and
        ``BadMessage`` for a request that turns out to be none.
        """
        if self._body.done:
            await self._send(connection, head)
            return await self._answer(connection, upgrade)
        self.took_body = True
        first = self._encoded(self._body.take())
        await self._send(connection, head + first)
        if self._body.done:
            return await self._answer(connection, upgrade)
        self._sending = asyncio.get_running_loop().create_task(self._send_body(connection))
        try:
            reusable = await self._answer(connection, upgrade)
            return reusable and self._body_is_sent
        finally:
            self._sending.cancel()
            await asyncio.wait([self._sending])
            if not self._sending.cancelled():
                self._sending.exception()

    @property
    def _body_is_sent(self) -> bool:
        """Whether the server has all of it; of one that failed it never will."""
        sending = self._sending
        if sending is None:
            return True
        return sending.done() and not sending.cancelled() and sending.exception() is None

    def _encoded(self, content: bytes) -> bytes:
        if not self._body.chunked:
            return content
        last = LAST_CHUNK if self._body.done else b""
        return (chunk(content) if content else b"") + last

    async def _send(self, connection: ServerConnection, data: bytes) -> None:
        try:
            await connection.write(data, self._settings.stall)
        except TimeoutError:
            raise PortClosed from None

    async def _send_body(self, connection: ServerConnection) -> None:
        """Pass the body on; what goes wrong with the server is seen by who waits for its answer."""
        while not self._body.done:
            await self._body.more()
            data = self._encoded(self._body.take())
            if data:
                await self._send(connection, data)

    # --------------------------------------------------------------------------- the answer

    async def _answer(self, connection: ServerConnection, upgrade: bytes) -> bool:
        data = b""
        while True:
            head, data = await self._head(connection, data)
            if head.status >= 200:
                break
            if head.status == 101:
                await self._tunnel(connection, head, data, upgrade)
                return False
            if self._request.version == b"1.1":
                headers = response_headers(head.headers, self._admission)
                await self._client.write(
                    response_bytes(head.status, head.reason, headers), self._settings.stall
                )
        try:
            body = response_body(head, self._request.method)
        except BadMessage as error:
            raise _bad_answer(error) from None
        await self._pass_answer(connection, head, body, data)
        return head.lasts and not body.until_closed and connection.is_idle

    async def _head(self, connection: ServerConnection, data: bytes) -> tuple[ResponseHead, bytes]:
        """Return the next head of the server, and what came behind it."""
        seen = 0
        try:
            while (end := end_of_head(data, seen)) < 0:
                seen = len(data)
                more = await self._more(connection)
                if not more:
                    if not data:
                        raise PortClosed
                    raise BadMessage("it ends within its head")
                data = data + more if data else more
            return parse_response(data[:end]), data[end:]
        except BadMessage as error:
            raise _bad_answer(error) from None

    async def _pass_answer(
        self, connection: ServerConnection, head: ResponseHead, body: Body, data: bytes
    ) -> None:
        """Send the client an answer whose head has come."""
        client, stall = self._client, self._settings.stall
        unframed = body.chunked or body.until_closed
        chunked = unframed and self._request.version == b"1.1"
        if unframed and not chunked:
            self.lasts = False
        if not self._body_is_sent:
            # Who answers early may never take the rest.
            self.lasts = False
        headers = response_headers(head.headers, self._admission)
        headers += page_headers(headers)
        if chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        if not self.lasts:
            headers.append((b"connection", b"close"))
        out = response_bytes(head.status, head.reason, headers)
        self.begun = True
        framed = chunked or not unframed
        try:
            while True:
                content, data = body.take(data)
                if content:
                    piece = chunk(content) if chunked else content
                    out = out + piece if out else piece
                if body.done:
                    if data:
                        # What nobody asked for belongs to no answer.
                        connection.close()
                    break
                if out:
                    await client.write(out, stall)
                    out = b""
                data = await self._more(connection)
                if not data:
                    if body.until_closed and not body.chunked and not connection.is_cut_off:
                        break
                    raise BadMessage("it ends before its end")
        except BadMessage:
            await self._cut_off(out, framed=framed)
        if chunked:
            out += LAST_CHUNK
        if out:
            await client.write(out, stall)

    async def _more(self, connection: ServerConnection) -> bytes:
        """Return what the server sends next; raise what the client has done wrong meanwhile."""
        seconds = self._settings.answer
        sending = self._sending
        try:
            if sending is None or sending.done():
                return await connection.read(seconds)
            reading = asyncio.ensure_future(connection.read(FOR_EVER))
            try:
                # One that is still coming keeps the server waiting; its own deadlines hold.
                await asyncio.wait([reading, sending], return_when=asyncio.FIRST_COMPLETED)
                error = sending.exception() if sending.done() else None
                if error is not None and not isinstance(error, PortClosed):
                    raise error
                async with asyncio.timeout(seconds):
                    return await reading
            finally:
                reading.cancel()
        except TimeoutError:
            if self.begun:
                self._client.reset()
                raise ClientGone from None
            raise PreviewRefused(
                504,
                "preview-server-silent",
                f"The server did not answer within {seconds:g} seconds.",
            ) from None

    async def _cut_off(self, out: bytes, *, framed: bool) -> None:
        """Send what there is, and close so that it is not taken for all."""
        if out:
            await self._client.write(out, self._settings.stall)
        # Without chunks or a length only a reset tells.
        if framed:
            self._client.close()
        else:
            self._client.reset()
        raise ClientGone

    # ----------------------------------------------------------------------------- tunnels

    async def _tunnel(
        self, connection: ServerConnection, head: ResponseHead, data: bytes, upgrade: bytes
    ) -> None:
        """Pass bytes on as they come, until both sides have ended."""
        if not upgrade:
            detail = "The server switched to a protocol that was not requested."
            raise PreviewRefused(502, "bad-answer", detail)
        headers = response_headers(head.headers, self._admission, upgrade=upgrade)
        self._client.is_tunnel = True
        self.begun, self.lasts = True, False
        out = response_bytes(101, head.reason, headers) + data
        await self._client.write(out, self._settings.stall)
        if self._body.rest:
            early, self._body.rest = self._body.rest, b""
            await self._send(connection, early)
        try:
            await _both(self._inward(connection), self._outward(connection))
        except (PortClosed, TimeoutError):
            self._client.abort()
            raise ClientGone from None

    async def _inward(self, connection: ServerConnection) -> None:
        while data := await self._client.read(FOR_EVER):
            await self._send(connection, data)
        connection.write_eof()

    async def _outward(self, connection: ServerConnection) -> None:
        while data := await connection.read(FOR_EVER):
            await self._client.write(data, self._settings.stall)
        self._client.write_eof()


def _bad_answer(error: BadMessage) -> PreviewRefused:
    return PreviewRefused(502, "bad-answer", f"The server's answer is not valid HTTP: {error}.")


async def _both(*ways: object) -> None:
    """Wait for both directions; the failure of one ends the other."""
    tasks = [asyncio.ensure_future(cast("asyncio.Future[None]", way)) for way in ways]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
