"""Decides on every connection of workspaces with a policy, dials, and passes bytes on.

The network guard redirects connections here; the kernel tells where each was going. An address
stands for a name (:mod:`.name_addresses`), which the client has to say again: as the host of TLS or
of an HTTP request. What the proxy dials it has looked up itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import cast
from uuid import UUID

import structlog

from workspaces.egress import name_server, web
from workspaces.egress.client_hello import HANDSHAKE, NotTls, read_client_hello
from workspaces.egress.decisions import Decision
from workspaces.egress.dialling import Dialler, Unreachable
from workspaces.egress.host_policy import DNS_PORT, HTTP_PORT, SSH_PORT, TLS_PORT, Policy, Verdict
from workspaces.egress.name_addresses import NAME_ADDRESSES, AskedNames, address_for, is_host_name

FIRST_BYTES_SECONDS = 15.0
IDLE_SECONDS = 3600.0
MAX_CONNECTIONS = 512
CHUNK = 64 * 1024
_ORIGINAL_DESTINATION = 80  # SO_ORIGINAL_DST of linux/netfilter_ipv4.h
_OWN_PROTOCOL = {TLS_PORT: "tls", HTTP_PORT: "http", SSH_PORT: "ssh"}

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Network:
    """The network of one workspace or build with a policy."""

    attempt_id: UUID
    policy: Policy
    names: AskedNames = field(default_factory=AskedNames)
    queries: name_server.QueryAllowance = field(default_factory=name_server.QueryAllowance)


Whose = Callable[[str], Awaitable[Network | None]]
"""Tells the network whose gateway has an address; None when there is none, or nobody knows."""


class Refused(Exception):
    """A connection is not passed on."""

    def __init__(self, verdict: Verdict, host: str) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict
        self.host = host


@dataclass(slots=True)
class Connection:
    """A client's connection, and where it was going."""

    network: Network
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: IPv4Address
    port: int
    protocol: str = "tcp"
    buffered: bytes = b""
    sent: int = 0
    received: int = 0

    async def more(self) -> bytes:
        """Read what comes next; it is kept in ``buffered`` too."""
        data = await self.reader.read(CHUNK)
        self.buffered += data
        return data

    def require_asked(self, host: str) -> None:
        """Raise unless the client has connected to the address that stands for this name."""
        if self.address not in NAME_ADDRESSES:
            reason = f"{self.address} is an address: only names are reached."
            raise Refused(Verdict(False, "names-only", reason), host)
        if not is_host_name(host) or address_for(host) != self.address:
            reason = "The client says another host than the one whose name it has looked up."
            raise Refused(Verdict(False, "one-name", reason), host)


class EgressProxy:
    """Serves all networks with a policy of one machine.

    ``decided`` is told of every decision, and must not block. Runs in one event loop.
    """

    def __init__(self, whose: Whose, dialler: Dialler, decided: Callable[[Decision], None]) -> None:
        self._whose = whose
        self._dialler = dialler
        self._decided = decided
        self._open: Counter[UUID] = Counter()

    @contextlib.asynccontextmanager
    async def serving(self, port: int, *, host: str = "0.0.0.0") -> AsyncIterator[int]:  # noqa: S104
        """Listen for connections and name queries at one port; 0: a free one, which is returned.

        Only workspaces and builds with a policy get an answer. The network guard drops what others
        send to the port of the installation; without it their connections are reset.
        """
        server = await asyncio.start_server(self._serve, host, port, limit=CHUNK, backlog=1024)
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # The answer has to come from the address that was asked.
        udp.setsockopt(socket.SOL_IP, _IP_PKTINFO, 1)
        udp.setblocking(False)
        try:
            udp.bind((host, port))
            loop.add_reader(udp.fileno(), self._datagrams, udp)
            yield port
        finally:
            # Not "async with": from Python 3.12.1 on that waits until every client has gone.
            server.close()
            loop.remove_reader(udp.fileno())
            udp.close()

    # --------------------------------------------------------------------------------------- names

    def _datagrams(self, udp: socket.socket) -> None:
        for _ in range(64):
            try:
                query, ancillary, _, sender = udp.recvmsg(
                    name_server.MAX_QUERY_BYTES + 1, socket.CMSG_SPACE(_PKTINFO.size)
                )
            except OSError:
                return
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_IP, _IP_PKTINFO):
                    task = asyncio.ensure_future(
                        self._answer(udp, query, sender, content[: _PKTINFO.size])
                    )
                    _tasks.add(task)
                    task.add_done_callback(_tasks.discard)

    async def _answer(
        self, udp: socket.socket, query: bytes, sender: tuple[str, int], info: bytes
    ) -> None:
        _, local, _ = _PKTINFO.unpack(info)
        network = await self._whose(socket.inet_ntoa(local))
        if network is None:
            return
        reply = self._reply(network, query)
        if reply:
            told = _PKTINFO.pack(0, local, b"\0" * 4)
            with contextlib.suppress(OSError):
                udp.sendmsg([reply], [(socket.SOL_IP, _IP_PKTINFO, told)], 0, sender)

    def _reply(self, network: Network, query: bytes) -> bytes | None:
        def refused(host: str, verdict: Verdict) -> None:
            self._decided(
                Decision(
                    network.attempt_id,
                    allowed=False,
                    protocol="dns",
                    host=_shown(host),
                    address="",
                    port=DNS_PORT,
                    rule=verdict.rule,
                    reason=verdict.reason,
                    connections=1,
                )
            )

        if not network.queries.take():
            reason = f"More than {name_server.PER_SECOND:g} names a second were asked for."
            refused("", Verdict(False, "queries", reason))
            return None
        return name_server.answer(query, network.policy, network.names, refused)

    async def _names_over_tcp(self, connection: Connection) -> None:
        reader, writer = connection.reader, connection.writer
        for _ in range(100):
            size = int.from_bytes(await reader.readexactly(2), "big")
            reply = self._reply(connection.network, await reader.readexactly(size))
            if reply is None:
                return
            writer.write(len(reply).to_bytes(2, "big") + reply)
            await writer.drain()

    # --------------------------------------------------------------------------------- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            client = cast("socket.socket", writer.get_extra_info("socket"))
            local = str(client.getsockname()[0])
            network = await self._whose(local)
            if network is None:
                log.warning("egress_connection_of_nobody", address=local)
                _reset(writer)
                return
            await self._counted(Connection(network, reader, writer, *_wanted(client)))
        except (OSError, EOFError, TimeoutError):
            _reset(writer)
        except Exception:
            log.exception("egress_connection_failed")
            _reset(writer)
        finally:
            writer.close()

    async def _counted(self, connection: Connection) -> None:
        """Serve a connection; it counts until its socket and buffers have gone."""
        who = connection.network.attempt_id
        self._open[who] += 1
        try:
            try:
                await self._served_or_refused(connection)
            except BaseException:
                _reset(connection.writer)
                raise
            finally:
                await _closed(connection.writer)
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    async def _served_or_refused(self, connection: Connection) -> None:
        try:
            if self._open[connection.network.attempt_id] > MAX_CONNECTIONS:
                reason = f"More than {MAX_CONNECTIONS} connections are open."
                raise Refused(Verdict(False, "connections", reason), "")
            if connection.port == DNS_PORT:
                async with asyncio.timeout(FIRST_BYTES_SECONDS):
                    await self._names_over_tcp(connection)
                return
            await self._decide(connection)
        except Refused as refusal:
            self._tell(connection, refusal.verdict, refusal.host, connections=1)
            await self._refuse(connection, refusal)

    async def _decide(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(FIRST_BYTES_SECONDS):
                await self._sniff(connection)
        except TimeoutError:
            raise self._silent(connection) from None
        if connection.protocol == "http":
            await self._web(connection)
            return
        host = await self._said_host(connection)
        connection.require_asked(host)
        verdict = self._about(connection, host)
        if not verdict.allowed:
            raise Refused(verdict, host)
        await self._pass_on(connection, host, verdict)

    def _silent(self, connection: Connection) -> Refused:
        host = connection.network.names.only_name_at(connection.address) or ""
        reason = "The client sent nothing, so nobody knows which protocol it speaks."
        return Refused(Verdict(False, "protocol", reason), host)

    async def _sniff(self, connection: Connection) -> None:
        """Learn the protocol from the first bytes."""
        while True:
            if not await connection.more():
                raise EOFError
            begun = connection.buffered
            if begun[0] == HANDSHAKE:
                connection.protocol = "tls"
                return
            if begun.startswith(b"SSH-"):
                connection.protocol = "ssh"
                return
            if web.MAY_BE_A_REQUEST.match(begun):
                connection.protocol = "http"
                return
            if not (b"SSH-".startswith(begun) or web.MAY_BECOME_A_REQUEST.fullmatch(begun)):
                return

    async def _said_host(self, connection: Connection) -> str:
        """Return the host that the client says, or that its address stands for."""
        looked_up = connection.network.names.only_name_at(connection.address) or ""
        if connection.protocol != "tls":
            return looked_up
        try:
            async with asyncio.timeout(FIRST_BYTES_SECONDS):
                while (hello := read_client_hello(connection.buffered)) is None:
                    if not await connection.more():
                        raise EOFError
        except TimeoutError:
            raise self._silent(connection) from None
        except NotTls as error:
            raise Refused(Verdict(False, "protocol", str(error)), looked_up) from error
        return hello.host

    def _about(self, connection: Connection, host: str) -> Verdict:
        policy, port = connection.network.policy, connection.port
        expected = _OWN_PROTOCOL.get(port)
        if expected is not None and connection.protocol != expected:
            reason = f"Port {port} is for {expected} only."
            return Verdict(False, "protocol", reason)
        if connection.protocol == "tcp" and not policy.names_port(host, port):
            verdict = policy.about_connection(host, port)
            reason = f"Only HTTP, TLS and SSH pass where no rule names {host} and port {port}."
            return Verdict(False, "protocol", reason) if verdict.allowed else verdict
        return policy.about_connection(host, port)

    async def _web(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(FIRST_BYTES_SECONDS):
                request = await web.read_request(connection.buffered, connection.reader)
        except web.BadRequest as error:
            looked_up = connection.network.names.only_name_at(connection.address) or ""
            raise Refused(Verdict(False, "protocol", str(error)), looked_up) from error
        connection.require_asked(request.host)
        expected = _OWN_PROTOCOL.get(connection.port, "http")
        if expected != "http":
            reason = f"Port {connection.port} is for {expected} only."
            raise Refused(Verdict(False, "protocol", reason), request.host)
        verdict = connection.network.policy.about_request(
            request.host, connection.port, request.method, request.path
        )
        if request.port not in (None, connection.port):
            reason = "The request names another port than the one that was connected to."
            verdict = Verdict(False, "one-name", reason)
        if not verdict.allowed:
            raise Refused(verdict, request.host)
        await self._pass_on(connection, request.host, verdict, request)

    async def _pass_on(
        self,
        connection: Connection,
        host: str,
        verdict: Verdict,
        request: web.Request | None = None,
    ) -> None:
        try:
            address, upstream, out = await self._dialler.dial(host, connection.port)
        except Unreachable as error:
            raise Refused(Verdict(False, error.rule, str(error)), host) from error
        self._tell(connection, verdict, host, address=address, connections=1)
        try:
            await _relay(connection, upstream, out, request)
        except BaseException:
            out.transport.abort()
            raise
        finally:
            self._tell(connection, verdict, host, address=address, connections=0)
            await _closed(out)

    async def _refuse(self, connection: Connection, refusal: Refused) -> None:
        if connection.protocol == "http":
            with contextlib.suppress(OSError, TimeoutError):
                connection.writer.write(
                    web.refusal(
                        host=refusal.host,
                        port=connection.port,
                        rule=refusal.verdict.rule,
                        reason=refusal.verdict.reason,
                    )
                )
                async with asyncio.timeout(FIRST_BYTES_SECONDS):
                    await connection.writer.drain()
                    connection.writer.write_eof()
                    # A reset, which unread bytes cause, would take the answer back.
                    for _ in range(64):
                        if not await connection.reader.read(CHUNK):
                            break
                return
        _reset(connection.writer)

    def _tell(
        self,
        connection: Connection,
        verdict: Verdict,
        host: str,
        *,
        connections: int,
        address: str = "",
    ) -> None:
        self._decided(
            Decision(
                connection.network.attempt_id,
                allowed=verdict.allowed,
                protocol=connection.protocol,
                host=_shown(host),
                address=address or str(connection.address),
                port=connection.port,
                rule=verdict.rule,
                reason=verdict.reason,
                connections=connections,
                sent=connection.sent,
                received=connection.received,
            )
        )


async def _relay(
    connection: Connection,
    upstream: asyncio.StreamReader,
    out: asyncio.StreamWriter,
    request: web.Request | None,
) -> None:
    async def send() -> None:
        if request is not None:
            async for data in request.passed_on(connection.reader):
                out.write(data)
                connection.sent += len(data)
                await out.drain()
            return
        data = connection.buffered
        while data:
            out.write(data)
            connection.sent += len(data)
            await out.drain()
            data = await connection.reader.read(CHUNK)
        out.write_eof()

    async def receive() -> None:
        while data := await upstream.read(CHUNK):
            connection.writer.write(data)
            connection.received += len(data)
            await connection.writer.drain()
        connection.writer.write_eof()

    async def idle() -> None:
        before = -1
        while before != connection.sent + connection.received:
            before = connection.sent + connection.received
            await asyncio.sleep(IDLE_SECONDS)
        raise TimeoutError

    tasks = [asyncio.ensure_future(each()) for each in (send, receive)]
    watch = asyncio.ensure_future(idle())
    try:
        with contextlib.suppress(OSError, EOFError, TimeoutError, web.BadRequest):
            pending: set[asyncio.Future[None]] = {*tasks, watch}
            while not all(task.done() for task in tasks):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if request is not None and tasks[1].done():
                    break  # an answer may come before the request has ended
    finally:
        for task in (*tasks, watch):
            task.cancel()
        await asyncio.gather(*tasks, watch, return_exceptions=True)


_tasks: set[asyncio.Future[None]] = set()
_IP_PKTINFO = 8  # of linux/in.h; the module of Python does not name it
_PKTINFO = struct.Struct("@I4s4s")


def _wanted(client: socket.socket) -> tuple[IPv4Address, int]:
    """Return where a redirected connection was going; without redirection, to us."""
    try:
        told = client.getsockopt(socket.SOL_IP, _ORIGINAL_DESTINATION, 16)
    except OSError:
        address, port = client.getsockname()[:2]
        return IPv4Address(address), int(port)
    port, packed = struct.unpack_from("!2xH4s", told)
    return IPv4Address(packed), int(port)


def _shown(host: str) -> str:
    """Return what a client has said as a host, as it can be stored."""
    return "".join(each if each.isascii() and each.isprintable() else "?" for each in host[:253])


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection and wait until it has gone; a peer that does not read is cut off."""
    writer.close()
    try:
        async with asyncio.timeout(FIRST_BYTES_SECONDS):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        return
    finally:
        writer.transport.abort()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Have the connection end with a reset."""
    client = cast("socket.socket", writer.get_extra_info("socket"))
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
