"""The proxy gives back what a connection took: its socket, its buffers, its place."""

from __future__ import annotations

import asyncio
import json
import socket
from ipaddress import IPv4Network
from pathlib import Path
from uuid import uuid4

import dns.message
import dns.rcode
import pytest

from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.loopback import HERE, Names, names_of_this_machine
from workspaces.blueprint import Egress
from workspaces.egress import dialling, relaying
from workspaces.egress.decisions import Decision
from workspaces.egress.dialling import Dialler
from workspaces.egress.host_policy import Policy
from workspaces.egress.name_addresses import ReachableAddresses, address_for
from workspaces.egress.open_networks import Network
from workspaces.egress.presets import Presets
from workspaces.egress.proxy import EgressProxy


def open_to(port: int) -> int:
    """How many sockets some program has open to a port; those that the kernel ends alone not."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    wanted = f"0100007F:{port:04X}"
    return sum(words[2] == wanted and words[9] != "0" for words in map(str.split, lines))


async def served(host: str) -> list[Decision]:
    """Upload to a server that answers at once and never reads what is uploaded."""
    decisions: list[Decision] = []
    address = str(address_for(host))
    full = asyncio.Event()
    ended = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await full.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nwelcome")
        writer.write_eof()
        await ended.wait()
        writer.close()

    upstream = await asyncio.start_server(answer, HERE, 0)
    port = upstream.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Names, (HERE, 0))
    resolver = "{}:{}".format(*transport.get_extra_info("sockname"))
    egress = Egress.model_validate({"rules": [{"hosts": [host], "ports": [port]}]})
    network = Network(uuid4(), Policy.of(egress, Presets({})))

    async def whose(gateway: str) -> Network:
        return network

    reachable = ReachableAddresses([IPv4Network(f"{HERE}/32")], IPv4Network("10.213.0.0/16"))
    served = EgressProxy(whose, Dialler(reachable, [resolver]), decisions.append)
    async with served.serving(port, host=address):
        reader, writer = await asyncio.open_connection(address, port)
        head = f"POST / HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {64 << 20}\r\n\r\n"
        writer.write(head.encode() + b"x" * (32 << 20))
        before = -1
        while before != (before := writer.transport.get_write_buffer_size()):
            await asyncio.sleep(0.3)
        full.set()
        told = await reader.read(1000)
        assert b"welcome" in told, decisions[-1].reason
        while open_to(port):
            await asyncio.sleep(0.05)
        writer.transport.abort()
        # Somebody who is still connected does not keep the proxy from ending.
        _, idle = await asyncio.open_connection(address, port)
    idle.close()
    ended.set()
    upstream.close()
    transport.close()
    return decisions


def test_a_server_that_does_not_read_keeps_no_socket_when_the_connection_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relaying, "FIRST_BYTES_SECONDS", 2.0)
    with names_of_this_machine(1) as (host,):
        decisions = asyncio.run(asyncio.wait_for(served(host), LONG_WAIT))
    assert [decision.connections for decision in decisions] == [1, 0]
    assert decisions[1].sent > 0


async def asked_of_nobody(host: str) -> tuple[bytes, list[Decision]]:
    """Ask a host for something at a port where nobody listens."""
    decisions: list[Decision] = []
    address = str(address_for(host))
    with socket.socket() as taken:
        taken.bind((HERE, 0))  # and does not listen
        port = taken.getsockname()[1]
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(Names, (HERE, 0))
        resolver = "{}:{}".format(*transport.get_extra_info("sockname"))
        egress = Egress.model_validate({"rules": [{"hosts": [host], "ports": [port]}]})
        network = Network(uuid4(), Policy.of(egress, Presets({})))

        async def whose(gateway: str) -> Network:
            return network

        reachable = ReachableAddresses([IPv4Network(f"{HERE}/32")], IPv4Network("10.213.0.0/16"))
        proxy = EgressProxy(whose, Dialler(reachable, [resolver]), decisions.append)
        async with proxy.serving(port, host=address):
            reader, writer = await asyncio.open_connection(address, port)
            writer.write(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
        transport.close()
    return answer, decisions


def test_a_host_that_nobody_answers_for_is_told_as_not_reached() -> None:
    with names_of_this_machine(1) as (host,):
        answer, decisions = asyncio.run(asyncio.wait_for(asked_of_nobody(host), LONG_WAIT))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    problem = json.loads(body)
    assert (problem["status"], problem["code"]) == (502, "egress-not-reached")
    assert problem["host"] == host
    assert "allowedBy" not in problem
    assert [(each.allowed, each.rule) for each in decisions] == [(False, "not-connected")]


def test_a_host_that_never_answers_is_not_reached_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialling, "REACH_SECONDS", 0.2)

    async def dialled() -> None:
        silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with silent:
            silent.bind((HERE, 0))  # a name server that answers nothing
            resolver = f"{HERE}:{silent.getsockname()[1]}"
            reachable = ReachableAddresses([], IPv4Network("10.213.0.0/16"))
            await Dialler(reachable, [resolver]).dial("silent.test", 443)

    with pytest.raises(dialling.Unreachable, match="did not answer in time"):
        asyncio.run(asyncio.wait_for(dialled(), LONG_WAIT))


class NoNames(Names):
    """Says that no name is anywhere, and how so."""

    def __init__(self, rcode: dns.rcode.Rcode) -> None:
        self._rcode = rcode

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = dns.message.make_response(dns.message.from_wire(data))
        reply.set_rcode(self._rcode)
        self.transport.sendto(reply.to_wire(), addr)


@pytest.mark.parametrize(
    ("rcode", "said"),
    [
        (dns.rcode.NXDOMAIN, "there is no such name"),
        (dns.rcode.NOERROR, "it has no IPv4 address"),
        (dns.rcode.SERVFAIL, "the name servers gave no usable answer"),
    ],
)
def test_why_a_name_is_not_found_is_said_in_words(rcode: dns.rcode.Rcode, said: str) -> None:
    async def dialled() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: NoNames(rcode), (HERE, 0))
        resolver = "{}:{}".format(*transport.get_extra_info("sockname"))
        reachable = ReachableAddresses([], IPv4Network("10.213.0.0/16"))
        try:
            await Dialler(reachable, [resolver]).dial("a.test", 443)
        finally:
            transport.close()

    with pytest.raises(dialling.Unreachable) as caught:
        asyncio.run(asyncio.wait_for(dialled(), LONG_WAIT))
    assert str(caught.value) == f"a.test could not be looked up: {said}."
