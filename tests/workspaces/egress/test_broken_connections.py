"""A connection that breaks at one side of the proxy does not seem to end well at the other."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from ipaddress import IPv4Network
from typing import Any
from uuid import uuid4

import pytest

from tests.support.waiting import LONG_WAIT
from tests.workspaces.egress.loopback import HERE, Names, names_of_this_machine
from workspaces.blueprint import Egress
from workspaces.egress import relaying
from workspaces.egress.bound.authorities import Authority, new_authority
from workspaces.egress.dialling import Dialler
from workspaces.egress.host_policy import Policy
from workspaces.egress.name_addresses import ReachableAddresses, address_for
from workspaces.egress.open_networks import Network
from workspaces.egress.presets import Presets
from workspaces.egress.proxy import EgressProxy
from workspaces.egress.relaying import reset

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OWN_PROTOCOL = b"\0begun"


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    with names_of_this_machine(1) as (name,):
        yield name


@contextlib.asynccontextmanager
async def between(
    host: str, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[Streams]:
    """Be connected through the proxy with a host that serves so; what it raises is raised here."""
    served: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
            served.set_result(None)
        except BaseException as error:
            served.set_exception(error)
        finally:
            writer.close()

    upstream = await asyncio.start_server(noted, HERE, 0)
    port = upstream.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Names, (HERE, 0))
    resolver = "{}:{}".format(*transport.get_extra_info("sockname"))
    egress = Egress.model_validate({"rules": [{"hosts": [host], "ports": [port]}]})
    network = Network(uuid4(), Policy.of(egress, Presets({})))
    network.names.asked(host)

    async def whose(gateway: str) -> Network:
        return network

    reachable = ReachableAddresses([IPv4Network(f"{HERE}/32")], IPv4Network("10.213.0.0/16"))
    proxy = EgressProxy(whose, Dialler(reachable, [resolver]), lambda decision: None)
    address = str(address_for(host))
    try:
        async with proxy.serving(port, host=address):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                yield reader, writer
                await served
            finally:
                writer.transport.abort()
    finally:
        upstream.close()
        transport.close()


async def end_of(reader: asyncio.StreamReader) -> str:
    """Read to the end, and say what it was."""
    try:
        await reader.read()
    except ConnectionResetError:
        return "reset"
    return "end"


def done(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, LONG_WAIT))


@pytest.mark.parametrize(
    "request_", [OWN_PROTOCOL, b"GET / HTTP/1.0\r\nHost: {}\r\n\r\n"], ids=["bytes", "http"]
)
def test_half_of_an_answer_does_not_seem_to_be_all_of_it(host: str, request_: bytes) -> None:
    async def test() -> None:
        heard = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1000)
            writer.write(b"HTTP/1.0 200 OK\r\n\r\nhalf of it")
            await heard.wait()
            reset(writer)

        async with between(host, serve) as (reader, writer):
            port = writer.get_extra_info("peername")[1]
            writer.write(request_.replace(b"{}", f"{host}:{port}".encode()))
            await reader.readuntil(b"half of it")
            heard.set()
            assert await end_of(reader) == "reset"

    done(test())


def test_a_client_that_is_killed_does_not_seem_to_have_said_everything(host: str) -> None:
    async def test() -> None:
        heard = asyncio.Event()
        ends = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(OWN_PROTOCOL))
            heard.set()
            ends.append(await end_of(reader))

        async with between(host, serve) as (_, writer):
            writer.write(OWN_PROTOCOL)
            await heard.wait()
            reset(writer)
        assert ends == ["reset"]

    done(test())


def test_nobody_takes_a_connection_that_was_idle_for_too_long_for_one_that_ended(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaying, "IDLE_SECONDS", 0.05)

    async def test() -> None:
        ends = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends.append(await end_of(reader))

        async with between(host, serve) as (reader, writer):
            writer.write(OWN_PROTOCOL)
            ends.append(await end_of(reader))
        assert ends == ["reset", "reset"]

    done(test())


def test_a_tls_connection_that_its_peer_has_reset_can_still_be_reset() -> None:
    async def test() -> None:
        authority = Authority(*new_authority(uuid4()))
        trusted = ssl.create_default_context(cadata=authority.certificate)

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reset(writer)

        server = await asyncio.start_server(serve, HERE, 0, ssl=authority.context_for("h.test"))
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            HERE, port, ssl=trusted, server_hostname="h.test"
        )
        assert await end_of(reader) == "reset"
        while writer.get_extra_info("socket") is not None:
            await asyncio.sleep(0.01)
        reset(writer)
        server.close()

    done(test())
