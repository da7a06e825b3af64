"""A client's connection, and passing bytes on between it and a host."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import AsyncIterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import cast

from workspaces.egress import web
from workspaces.egress.bound.placeholders import Watch
from workspaces.egress.name_addresses import NAME_ADDRESSES, address_for, is_host_name
from workspaces.egress.open_networks import Network
from workspaces.egress.refusal import Refused, refused
from workspaces.egress.tls_ending import (
    Input,
    NotAccepted,
    Output,
    TlsEnding,
    TooManyCertificates,
)

FIRST_BYTES_SECONDS = 15.0
IDLE_SECONDS = 3600.0
CHUNK = 64 * 1024
TICK_SECONDS = 0.01
_ORIGINAL_DESTINATION = 80  # SO_ORIGINAL_DST of linux/netfilter_ipv4.h


@dataclass(slots=True)
class Connection:
    """A client's connection, and where it was going.

    ``host`` is set while its TLS is opened; then ``input`` and ``output`` are what is inside.
    """

    network: Network
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: IPv4Address
    port: int
    protocol: str = "tcp"
    buffered: bytes = b""
    sent: int = 0
    received: int = 0
    host: str = ""
    inside: TlsEnding | None = None

    @property
    def input(self) -> Input:
        """What the client says."""
        return self.inside or self.reader

    @property
    def output(self) -> Output:
        """What it is told."""
        return self.inside or self.writer

    @property
    def placeholders(self) -> frozenset[bytes]:
        """What must be sent nowhere."""
        return frozenset(self.network.placeholders.values())

    async def more(self) -> bytes:
        """Read what comes next; it is kept in ``buffered`` too."""
        data = await self.reader.read(CHUNK)
        self.buffered += data
        return data

    def require_asked(self, host: str) -> None:
        """Raise unless the client has connected to the address that stands for this name."""
        if self.address not in NAME_ADDRESSES:
            reason = f"{self.address} is an address: only names are reached."
            raise refused("names-only", reason, host)
        if not is_host_name(host) or address_for(host) != self.address:
            reason = "The client says another host than the one whose name it has looked up."
            raise refused("one-name", reason, host)

    async def open_tls(self, host: str) -> None:
        """Be the host for a client that trusts the workspace's own authority.

        Raises ``Refused`` when nobody can, or when the client does not trust it.
        """
        authority = self.network.authority
        if authority is None:
            raise refused("no-authority", self.network.no_authority, host)
        try:
            context = authority.context_for(host)
        except TooManyCertificates:
            reason = "The client asks for too many new hosts at once whose TLS would be opened."
            raise refused("certificates", reason, host) from None
        ending = TlsEnding(self.reader, self.writer, context, self.buffered)
        try:
            async with asyncio.timeout(FIRST_BYTES_SECONDS):
                await ending.handshake()
        except NotAccepted as error:
            raise not_accepted(error, host) from error
        except TimeoutError:
            raise refused("protocol", "The client did not finish its handshake.", host) from None
        self.inside, self.host, self.protocol, self.buffered = ending, host, "https", b""


def not_accepted(error: NotAccepted, host: str) -> Refused:
    """Return the refusal of a client that does not take the certificate that it was shown."""
    reason = (
        f"The client does not accept the certificate of the workspace's own authority ({error}). "
        "A program that pins certificates, or brings its own list of authorities, cannot reach a "
        "host whose rule has a credential, methods or paths."
    )
    return refused("certificate-not-accepted", reason, host)


async def relay(
    connection: Connection,
    upstream: asyncio.StreamReader,
    out: asyncio.StreamWriter,
    request: web.Request | None,
) -> None:
    """Pass on what both sides say until both have ended; of a request, until the answer has.

    Where one breaks off, so does the other one: what it has heard is not the whole. Raises
    ``Misplaced``.
    """
    watch = Watch(connection.placeholders if connection.protocol not in ("tls", "ssh") else ())

    async def send() -> None:
        said = (
            _as_it_comes(connection, watch)
            if request is None
            else request.passed_on(connection.input, watch)
        )
        async for data in said:
            out.write(data)
            connection.sent += len(data)
            await out.drain()
        if request is None:
            out.write_eof()

    async def receive() -> None:
        while data := await upstream.read(CHUNK):
            connection.output.write(data)
            connection.received += len(data)
            await connection.output.drain()
        connection.output.write_eof()

    async def idle() -> None:
        before = -1
        while before != connection.sent + connection.received:
            before = connection.sent + connection.received
            await asyncio.sleep(IDLE_SECONDS)
        raise TimeoutError

    tasks = [asyncio.ensure_future(each()) for each in (send, receive)]
    watching = asyncio.ensure_future(idle())
    broken = False
    try:
        with contextlib.suppress(EOFError, NotAccepted, web.BadRequest):
            pending: set[asyncio.Future[None]] = {*tasks, watching}
            while not all(task.done() for task in tasks):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if request is not None and tasks[1].done():
                    break  # an answer may come before the request has ended
    except OSError:  # a time limit, too
        broken = True
    finally:
        for task in (*tasks, watching):
            task.cancel()
        await asyncio.gather(*tasks, watching, return_exceptions=True)
    if broken:
        said, heard = (not task.cancelled() and task.exception() is None for task in tasks)
        if not heard:
            await _break_off(connection.writer)
        if not said and not (heard and request is not None):
            await _break_off(out)


async def _as_it_comes(connection: Connection, watch: Watch) -> AsyncIterator[bytes]:
    data = connection.buffered
    while data:
        watch.look_at(data)
        yield data
        data = await connection.reader.read(CHUNK)


async def tell_why(connection: Connection, refusal: Refused) -> None:
    """Say why, where a client can be told; what has begun is cut off."""
    begun = connection.sent or connection.received
    if begun or connection.protocol not in ("http", "https"):
        reset(connection.writer)
        return
    with contextlib.suppress(OSError, TimeoutError, NotAccepted):
        connection.output.write(
            web.refusal(
                host=refusal.host,
                port=connection.port,
                rule=refusal.verdict.rule,
                reason=refusal.verdict.reason,
                not_reached=refusal.not_reached,
            )
        )
        async with asyncio.timeout(FIRST_BYTES_SECONDS):
            await connection.output.drain()
            connection.output.write_eof()
            # A reset, which unread bytes cause, would take the answer back.
            for _ in range(64):
                if not await connection.input.read(CHUNK):
                    break


def wanted(client: socket.socket) -> tuple[IPv4Address, int]:
    """Return where a redirected connection was going; without redirection, to us."""
    try:
        told = client.getsockopt(socket.SOL_IP, _ORIGINAL_DESTINATION, 16)
    except OSError:
        address, port = client.getsockname()[:2]
        return IPv4Address(address), int(port)
    port, packed = struct.unpack_from("!2xH4s", told)
    return IPv4Address(packed), int(port)


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection and wait until it has gone; a peer that does not read is cut off."""
    writer.close()
    try:
        async with asyncio.timeout(FIRST_BYTES_SECONDS):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        return
    finally:
        writer.transport.abort()


async def _break_off(writer: asyncio.StreamWriter) -> None:
    """Have the connection end with a reset, behind what was written; a peer that reads gets it."""
    client = _socket_of(writer)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(FIRST_BYTES_SECONDS):
            while (
                client is not None
                and not writer.is_closing()
                and (writer.transport.get_write_buffer_size() or _not_acknowledged(client))
            ):
                await asyncio.sleep(TICK_SECONDS)
    reset(writer)


def _not_acknowledged(connection: socket.socket) -> int:
    """Return how many bytes the kernel has that the other side's has not."""
    told = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(told, sys.byteorder)


def reset(writer: asyncio.StreamWriter) -> None:
    """Have the connection end with a reset."""
    client = _socket_of(writer)
    if client is not None:
        with contextlib.suppress(OSError):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _socket_of(writer: asyncio.StreamWriter) -> socket.socket | None:
    """Return its socket; a TLS connection that was reset has none any more."""
    return cast("socket.socket | None", writer.get_extra_info("socket"))
