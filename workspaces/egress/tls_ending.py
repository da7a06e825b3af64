"""The server's side of TLS, over a connection whose first bytes were read already."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Protocol

CHUNK = 64 * 1024
PROTOCOLS = ("http/1.1",)
"""What is spoken inside, on both sides of the proxy."""


class Input(Protocol):
    """What may be read from: a ``StreamReader``, or the inside of TLS."""

    async def read(self, n: int) -> bytes:
        """Return the next bytes, at most ``n``; none at the end."""


class Output(Protocol):
    """What may be written to: a ``StreamWriter``, or the inside of TLS."""

    def write(self, data: bytes) -> None:
        """Write without waiting."""

    async def drain(self) -> None:
        """Wait until there is room for more."""

    def write_eof(self) -> None:
        """Say that nothing more comes."""


class TooManyCertificates(Exception):
    """A workspace asks for certificates of more hosts than are made for it."""


class NotAccepted(Exception):
    """The client ended the handshake; the text is what it said, if it said anything."""


class TlsEnding:
    """What a client says inside of TLS. One reader and one writer at a time."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        begun: bytes,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._incoming.write(begun)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        """Be the server that the client asks for; raises ``NotAccepted`` and ``EOFError``."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if not await self._more():
                    raise NotAccepted("it closed the connection") from None
            except ssl.SSLError as error:
                self._flush()
                raise NotAccepted(_said(error)) from error
            else:
                self._flush()
                return

    async def read(self, n: int) -> bytes:
        """Return the next bytes, at most ``n``; none at the end, however that came."""
        read = bytearray()
        while len(read) < n:
            try:
                data = self._tls.read(n - len(read))
            except ssl.SSLWantReadError:
                self._flush()
                if read or not await self._more():
                    break
            except ssl.SSLError as error:
                # Some clients say only now that they do not trust the certificate.
                if "ALERT" in (error.reason or ""):
                    raise NotAccepted(_said(error)) from error
                break
            else:
                if not data:
                    break
                read += data
        return bytes(read)

    def write(self, data: bytes) -> None:
        """Write without waiting."""
        self._tls.write(data)
        self._flush()

    async def drain(self) -> None:
        """Wait until there is room for more."""
        await self._writer.drain()

    def write_eof(self) -> None:
        """Say that nothing more comes."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._flush()
        self._writer.write_eof()

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._writer.write(data)

    async def _more(self) -> bool:
        data = await self._reader.read(CHUNK)
        if data:
            self._incoming.write(data)
        return bool(data)


def _said(error: ssl.SSLError) -> str:
    """Return the alert of a client in words."""
    reason = (error.reason or "it sent something else than TLS").lower()
    return reason.replace("tlsv1_alert_", "").replace("sslv3_alert_", "").replace("_", " ")
