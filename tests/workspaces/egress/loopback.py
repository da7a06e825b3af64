"""A proxy on loopback for one workspace, its name server, and hosts that note what reaches them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import dns.message
import dns.rrset
from django.test import override_settings

from tests.security.surroundings import ip
from workspaces.blueprint import Egress
from workspaces.egress.bound.authorities import Authority, new_authority
from workspaces.egress.bound_requests import BoundRequests
from workspaces.egress.decisions import Decision
from workspaces.egress.dialling import Dialler
from workspaces.egress.host_policy import Policy
from workspaces.egress.name_addresses import ReachableAddresses, address_for
from workspaces.egress.open_networks import Network
from workspaces.egress.presets import Presets
from workspaces.egress.proxy import EgressProxy

HERE = "127.0.0.1"


class Names(asyncio.DatagramProtocol):
    """Says that every name is here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        asked = dns.message.from_wire(data)
        reply = dns.message.make_response(asked)
        reply.answer.append(dns.rrset.from_text(asked.question[0].name, 0, "IN", "A", HERE))
        self.transport.sendto(reply.to_wire(), addr)


@contextlib.contextmanager
def names_of_this_machine(count: int) -> Any:
    """Names whose stand-ins are addresses of this machine, so that nothing need be redirected."""
    hosts = [f"h{uuid4().hex}.test" for _ in range(count)]
    with contextlib.ExitStack() as stack:
        for host in hosts:
            address = f"{address_for(host)}/32"
            ip("address", "add", address, "dev", "lo")
            stack.callback(ip, "address", "del", address, "dev", "lo")
        yield hosts


@dataclass
class Upstream:
    """Hosts of the world at one port: what they were sent, and how they prove their names."""

    heard: list[bytes] = field(default_factory=list)
    holding: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Note a request and answer it; a request for ``/hold`` is never answered in full."""
        try:
            said = await reader.readuntil(b"\r\n\r\n")
            self.heard.append(said)
            if b"Content-Length: " in said or b"content-length: " in said:
                self.heard[-1] += await reader.read(1 << 16)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\n")
            if b"/hold" in said:
                await writer.drain()
                self.holding.set()
                await reader.read()
            else:
                writer.write(b"welcome")
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@dataclass
class Loopback:
    """What a test has of it."""

    network: Network
    port: int
    upstream: Upstream
    decisions: list[Decision]
    trusted: ssl.SSLContext

    async def say(self, host: str, head: str, body: bytes = b"") -> bytes:
        """Send a request over TLS, as the workspace does, and return all that comes back."""
        reader, writer = await asyncio.open_connection(
            str(address_for(host)), self.port, ssl=self.trusted, server_hostname=host
        )
        writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        try:
            return await reader.read()
        except OSError:
            return b"reset"
        finally:
            writer.transport.abort()

    def told(self, rule: str) -> list[Decision]:
        """Return the decisions of a rule."""
        return [each for each in self.decisions if each.rule == rule]


def parsed(rules: list[dict[str, Any]], accounts: Mapping[int, UUID]) -> Policy:
    """Return a policy of these rules."""
    return Policy.of(Egress.model_validate({"rules": rules}), Presets({}), accounts)


@contextlib.asynccontextmanager
async def loopback(
    folder: Path,
    hosts: list[str],
    policy: Callable[[int], Policy],
    *,
    owner_user_id: str = "",
    placeholders: Mapping[UUID, bytes] | None = None,
    proven: bool = True,
) -> AsyncIterator[Loopback]:
    """Have one; ``policy`` makes its policy for the port, ``proven`` hosts have true names."""
    certificate, key = new_authority(uuid4())
    world = Authority(*new_authority(uuid4()))

    def proves(tls: ssl.SSLObject, name: str, _: ssl.SSLContext) -> None:
        tls.context = world.context_for(name if proven else "somebody.else.test")

    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.sni_callback = proves
    upstream = Upstream()
    server = await asyncio.start_server(upstream.serve, HERE, 0, ssl=server_tls)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Names, (HERE, 0))
    resolver = "{}:{}".format(*transport.get_extra_info("sockname"))
    network = Network(
        uuid4(),
        policy(port),
        owner_user_id=owner_user_id,
        placeholders=placeholders or {},
        authority=Authority(certificate, key),
    )
    decisions: list[Decision] = []
    # The authority of the hosts is one that only this installation trusts.
    extra_ca = folder / "extra-ca.crt"
    extra_ca.write_text(world.certificate)
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cadata=certificate)

    async def whose(gateway: str) -> Network:
        return network

    reachable = ReachableAddresses([IPv4Network(f"{HERE}/32")], IPv4Network("10.213.0.0/16"))
    proxy = EgressProxy(whose, Dialler(reachable, [resolver]), decisions.append, BoundRequests())
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(override_settings(SVC_EXTRA_CA_FILE=str(extra_ca)))
        for host in hosts:
            await stack.enter_async_context(proxy.serving(port, host=str(address_for(host))))
        yield Loopback(network, port, upstream, decisions, trusted)
    server.close()
    transport.close()
