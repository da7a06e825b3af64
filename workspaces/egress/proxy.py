"""Decides on every connection of workspaces with a policy, dials, and passes bytes on.

The network guard redirects connections here; the kernel tells where each was going. An address
stands for a name (:mod:`.name_addresses`), which the client has to say again: as the host of TLS or
of an HTTP request. What the proxy dials it has looked up itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import cast
from uuid import UUID

import structlog

from workspaces.egress import web
from workspaces.egress.bound.placeholders import Misplaced
from workspaces.egress.bound_requests import BoundRequests
from workspaces.egress.client_hello import HANDSHAKE, NotTls, read_client_hello
from workspaces.egress.decisions import Decision
from workspaces.egress.dialling import Dialler, Unreachable, start_tls
from workspaces.egress.host_policy import DNS_PORT, HTTP_PORT, SSH_PORT, TLS_PORT, Policy, Verdict
from workspaces.egress.name_listener import NameListener
from workspaces.egress.open_networks import Network, Revoked, Whose
from workspaces.egress.refusal import Refused, refused, shown
from workspaces.egress.relaying import (
    CHUNK,
    FIRST_BYTES_SECONDS,
    Connection,
    closed,
    not_accepted,
    relay,
    reset,
    tell_why,
    wanted,
)
from workspaces.egress.tls_ending import NotAccepted

MAX_CONNECTIONS = 512
_OWN_PROTOCOL = {TLS_PORT: "tls", HTTP_PORT: "http", SSH_PORT: "ssh"}

log = structlog.get_logger(__name__)


class EgressProxy:
    """Serves all networks with a policy of one machine.

    ``decided`` is told of every decision, and must not block. Runs in one event loop.
    """

    def __init__(
        self,
        whose: Whose,
        dialler: Dialler,
        decided: Callable[[Decision], None],
        bound: BoundRequests | None = None,
    ) -> None:
        self._whose = whose
        self._dialler = dialler
        self._decided = decided
        self._bound = bound or BoundRequests()
        self._names = NameListener(whose, decided)
        self._open: Counter[UUID] = Counter()

    @contextlib.asynccontextmanager
    async def serving(self, port: int, *, host: str = "0.0.0.0") -> AsyncIterator[int]:  # noqa: S104
        """Listen for connections and name queries at one port; 0: a free one, which is returned.

        Only workspaces and builds with a policy get an answer. The network guard drops what others
        send to the port of the installation; without it their connections are reset.
        """
        server = await asyncio.start_server(self._serve, host, port, limit=CHUNK, backlog=1024)
        port = server.sockets[0].getsockname()[1]
        try:
            with self._names.listening(host, port):
                yield port
        finally:
            # Not "async with": from Python 3.12.1 on that waits until every client has gone.
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            client = cast("socket.socket", writer.get_extra_info("socket"))
            local = str(client.getsockname()[0])
            network = await self._whose(local)
            if network is None:
                log.warning("egress_connection_of_nobody", address=local)
                reset(writer)
                return
            await self._counted(Connection(network, reader, writer, *wanted(client)))
        except (OSError, EOFError, TimeoutError):
            reset(writer)
        except Exception:
            log.exception("egress_connection_failed")
            reset(writer)
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
                reset(connection.writer)
                raise
            finally:
                await closed(connection.writer)
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    async def _served_or_refused(self, connection: Connection) -> None:
        try:
            if self._open[connection.network.attempt_id] > MAX_CONNECTIONS:
                raise refused(
                    "connections", f"More than {MAX_CONNECTIONS} connections are open.", ""
                )
            if connection.port == DNS_PORT:
                async with asyncio.timeout(FIRST_BYTES_SECONDS):
                    await self._names.serve(
                        connection.network, connection.reader, connection.writer
                    )
                return
            await self._decide(connection)
        except Refused as refusal:
            self._tell(
                connection,
                refusal.verdict,
                refusal.host,
                connections=1,
                finding=refusal.finding,
            )
            await tell_why(connection, refusal)

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
        verdict = _about(connection.network.policy, connection, host)
        if not verdict.allowed:
            raise Refused(verdict, host)
        if connection.protocol == "tls" and connection.network.policy.opens_tls(
            host, connection.port
        ):
            await connection.open_tls(host)
            await self._web(connection)
            return
        await self._pass_on(connection, host, verdict)

    def _silent(self, connection: Connection) -> Refused:
        host = connection.network.names.only_name_at(connection.address) or ""
        reason = "The client sent nothing, so nobody knows which protocol it speaks."
        return refused("protocol", reason, host)

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
            raise refused("protocol", str(error), looked_up) from error
        return hello.host

    async def _web(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(FIRST_BYTES_SECONDS):
                request = await web.read_request(connection.buffered, connection.input)
        except web.BadRequest as error:
            looked_up = connection.network.names.only_name_at(connection.address) or ""
            raise refused("protocol", str(error), connection.host or looked_up) from error
        except NotAccepted as error:
            raise not_accepted(error, connection.host) from error
        connection.require_asked(request.host)
        expected = "http" if connection.host else _OWN_PROTOCOL.get(connection.port, "http")
        if expected != "http":
            reason = f"Port {connection.port} is for {expected} only."
            raise refused("protocol", reason, request.host)
        if connection.host not in ("", request.host):
            reason = "The request names another host than the client's TLS did."
            raise refused("one-name", reason, request.host)
        if request.port not in (None, connection.port):
            reason = "The request names another port than the one that was connected to."
            raise refused("one-name", reason, request.host)
        verdict = _about_request(connection.network.policy, connection, request)
        self._bound.require_placed(connection, request, verdict)
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
        def still_allowed(policy: Policy) -> bool:
            if request is None:
                tls = connection.protocol == "tls"
                opened = tls and policy.opens_tls(host, connection.port)
                return not opened and _about(policy, connection, host).allowed
            another = _about_request(policy, connection, request)
            return another.allowed and another.bound == verdict.bound

        try:
            with connection.network.while_allowed(still_allowed):
                await self._connect(connection, host, verdict, request)
        except Revoked:
            raise _revoked(connection.network, verdict, host) from None
        except Misplaced:
            raise self._bound.misplaced(host, verdict) from None

    async def _connect(
        self, connection: Connection, host: str, verdict: Verdict, request: web.Request | None
    ) -> None:
        try:
            address, upstream, out = await self._dialler.dial(host, connection.port)
        except Unreachable as error:
            raise _not_reached(error, host) from error
        try:
            if connection.host:
                # At once: what comes before TLS would be read as the host's answer.
                await self._prove(out, host)
            if request is not None and verdict.bound:
                await self._bound.put_in(connection, request, verdict)
            self._tell(connection, verdict, host, address=address, connections=1, request=request)
            try:
                await relay(connection, upstream, out, request)
            finally:
                self._tell(
                    connection, verdict, host, address=address, connections=0, request=request
                )
        except BaseException:
            out.transport.abort()
            raise
        finally:
            await closed(out)

    async def _prove(self, out: asyncio.StreamWriter, host: str) -> None:
        """Speak TLS with a host that has to prove its name."""
        try:
            await start_tls(out, self._bound.upstream_tls, host)
        except Unreachable as error:
            raise _not_reached(error, host) from error

    def _tell(
        self,
        connection: Connection,
        verdict: Verdict,
        host: str,
        *,
        connections: int,
        address: str = "",
        finding: bool = False,
        request: web.Request | None = None,
    ) -> None:
        self._decided(
            Decision(
                connection.network.attempt_id,
                allowed=verdict.allowed,
                protocol=connection.protocol,
                host=shown(host),
                address=address or str(connection.address),
                port=connection.port,
                rule=verdict.rule,
                reason=verdict.reason,
                connections=connections,
                sent=connection.sent,
                received=connection.received,
                finding=finding,
                another_rule=verdict.another_rule,
                method="" if request is None else request.method[:20],
                credentials=tuple(str(each.account_id) for each in verdict.bound),
            )
        )


def _revoked(network: Network, verdict: Verdict, host: str) -> Refused:
    if network.is_cut_off:
        reason = "The egress proxy hears nothing from its database: until it does nothing passes."
        return refused("cut-off", reason, host)
    reason = (
        "The record of the workspace has ended, so nothing passes any more."
        if network.ended
        else "The policy was replaced by one that does not allow it."
    )
    return refused(verdict.rule, reason, host)


def _not_reached(error: Unreachable, host: str) -> Refused:
    verdict = Verdict(False, error.rule, str(error))
    return Refused(verdict, host, not_reached=not error.by_policy)


def _about(policy: Policy, connection: Connection, host: str) -> Verdict:
    port, protocol = connection.port, connection.protocol
    expected = _OWN_PROTOCOL.get(port)
    if expected is not None and protocol != expected:
        return Verdict(False, "protocol", f"Port {port} is for {expected} only.")
    verdict = policy.about_connection(host, port, protocol)
    if verdict.allowed and protocol == "tcp" and not policy.names_port(host, port):
        reason = f"Only HTTP, TLS and SSH pass where no rule names {host} and port {port}."
        return Verdict(False, "protocol", reason)
    return verdict


def _about_request(policy: Policy, connection: Connection, request: web.Request) -> Verdict:
    protocol = "tls" if connection.host else "http"
    return policy.about_request(
        request.host, connection.port, request.method, request.path, protocol
    )
