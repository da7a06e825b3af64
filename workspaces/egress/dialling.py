"""Looks a host up and connects to it, never to what is private or our own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from ipaddress import IPv4Address

import dns.asyncresolver
import dns.exception
import dns.resolver

from workspaces.egress.name_addresses import ReachableAddresses

LOOK_UP_SECONDS = 8.0
REACH_SECONDS = 10.0
"""Within which a host is looked up and connected to, or cannot be reached."""
CONNECT_SECONDS = 10.0
TRIED_ADDRESSES = 4
CHUNK = 64 * 1024


class Unreachable(Exception):
    """A host was not connected to; the text says why, ``rule`` what that is called.

    ``by_policy`` tells that it must not be, not that nobody answers.
    """

    def __init__(self, rule: str, reason: str, *, by_policy: bool = False) -> None:
        super().__init__(reason)
        self.rule = rule
        self.by_policy = by_policy


async def start_tls(out: asyncio.StreamWriter, context: ssl.SSLContext, host: str) -> None:
    """Speak TLS with a host that has to prove its name; raises ``Unreachable``."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await out.start_tls(context, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        reason = f"The certificate of {host} is not valid: {error.verify_message}."
        raise Unreachable("certificate-not-valid", reason, by_policy=True) from error
    except (OSError, TimeoutError) as error:
        raise Unreachable("not-connected", f"{host} did not speak TLS.") from error


class Dialler:
    """Connects to hosts by their names.

    ``resolvers`` are name servers as ``address`` or ``address:port``; without any the machine's own
    are asked (``/etc/resolv.conf``).
    """

    def __init__(self, reachable: ReachableAddresses, resolvers: Sequence[str] = ()) -> None:
        self._reachable = reachable
        self._resolver = dns.asyncresolver.Resolver(configure=not resolvers)
        if resolvers:
            servers = [server.partition(":") for server in resolvers]
            self._resolver.nameservers = [address for address, _, _ in servers]
            self._resolver.nameserver_ports = {
                address: int(port) for address, _, port in servers if port
            }
        self._resolver.cache = dns.resolver.LRUCache(4096)

    async def dial(
        self, host: str, port: int
    ) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the address that was connected to, and the connection; raises ``Unreachable``."""
        try:
            async with asyncio.timeout(REACH_SECONDS):
                return await self._dial(host, port)
        except TimeoutError:
            reason = f"{host} could not be connected to: it did not answer in time."
            raise Unreachable("not-connected", reason) from None

    async def _dial(
        self, host: str, port: int
    ) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
        found = await self._look_up(host)
        addresses = [address for address in found if self._reachable.may_reach(address)]
        if not addresses:
            raise Unreachable(
                "private-address",
                f"{host} resolves to {found[0]}, which workspaces may not reach."
                " The operator can list it in SVC_WORKSPACE_ALLOWED_NETWORKS.",
                by_policy=True,
            )
        fault: Exception | None = None
        tried = addresses[:TRIED_ADDRESSES]
        for address in tried:
            try:
                # Of several, one that is silent does not take the time of the others.
                async with asyncio.timeout(REACH_SECONDS / len(tried)):
                    reader, writer = await asyncio.open_connection(
                        str(address), port, family=socket.AF_INET, limit=CHUNK
                    )
            except (OSError, TimeoutError) as error:
                fault = error
            else:
                return str(address), reader, writer
        reason = getattr(fault, "strerror", None) or "it did not answer in time"
        raise Unreachable("not-connected", f"{host} could not be connected to: {reason}.")

    async def _look_up(self, host: str) -> list[IPv4Address]:
        try:
            answer = await self._resolver.resolve(
                f"{host}.", "A", lifetime=LOOK_UP_SECONDS, search=False
            )
        except dns.exception.DNSException as error:
            raise Unreachable(
                "not-resolved", f"{host} could not be looked up: {_in_words(error)}."
            ) from error
        return [IPv4Address(record.address) for record in answer]


def _in_words(error: dns.exception.DNSException) -> str:
    if isinstance(error, dns.resolver.NXDOMAIN):
        return "there is no such name"
    if isinstance(error, dns.resolver.NoAnswer):
        return "it has no IPv4 address"
    if isinstance(error, dns.exception.Timeout):
        return "the name servers did not answer"
    return "the name servers gave no usable answer"
