"""Connections that have not shown a valid link yet: no more than a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from controlplane.security.preview_links import TOKEN_HEADER, Grant, sign, signing_key
from runs.preview.client_connection import ClientConnection
from runs.preview.exchange import SharedByConnections
from runs.preview.preview_settings import PreviewSettings
from runs.preview.unadmitted import Unadmitted
from tests.runs.preview.test_preview_heads import SETTINGS, WORKSPACE
from tests.support.waiting import LONG_WAIT

HOST = f"8000-{WORKSPACE}.localhost"
PATIENT = replace(SETTINGS, head=LONG_WAIT)
"""Sends nobody away who is slow on a busy machine."""
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Somebody:
    """A client that can be sent away."""

    def __init__(self) -> None:
        self.dismissed = False

    def dismiss(self) -> None:
        """Know that it was."""
        self.dismissed = True


def test_one_address_has_a_share_and_gets_it_back() -> None:
    known = Unadmitted(100, 2)
    first, second = Somebody(), Somebody()
    assert known.add(first, "192.0.2.1")
    assert known.add(second, "::ffff:192.0.2.1")
    assert not known.add(Somebody(), "192.0.2.1")
    assert known.add(Somebody(), "192.0.2.2")
    known.discard(first)
    known.discard(first)
    assert known.add(Somebody(), "192.0.2.1")
    assert not known.add(Somebody(), "192.0.2.1")


def test_all_addresses_of_a_network_of_ipv6_are_one() -> None:
    known = Unadmitted(100, 1)
    assert known.add(Somebody(), "2001:db8::1")
    assert not known.add(Somebody(), "2001:db8::2")
    assert known.add(Somebody(), "2001:db8:0:1::1")
    assert known.add(Somebody(), "fe80::1%eth0")


def test_who_has_waited_longest_goes_when_there_are_too_many() -> None:
    known = Unadmitted(2, 2)
    clients = [Somebody() for _ in range(4)]
    assert all(known.add(each, f"192.0.2.{number}") for number, each in enumerate(clients))
    assert [each.dismissed for each in clients] == [True, True, False, False]


def test_a_shared_address_has_no_share() -> None:
    known = Unadmitted(100, 1)
    assert all(known.add(Somebody(), None) for _ in range(10))


async def _with(settings: PreviewSettings, act: Callable[[Connect], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    shared = SharedByConnections(settings)
    server = await loop.create_server(lambda: ClientConnection(shared), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    try:
        await act(lambda: asyncio.open_connection(*address))
        async with asyncio.timeout(LONG_WAIT):
            while shared.clients:
                await asyncio.sleep(0.01)
    finally:
        server.close()
        shared.workspaces.close()


def test_too_many_silent_connections_of_one_address_are_refused() -> None:
    async def act(connect: Connect) -> None:
        silent = [await connect() for _ in range(4)]
        reader, writer = await connect()
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"preview-too-many-connections" in answer
        writer.close()
        # The place of one that goes is another one's.
        silent.pop()[1].close()
        async with asyncio.timeout(LONG_WAIT):
            while not (answer := await _answer(connect)).startswith(b"HTTP/1.1 401 "):
                await asyncio.sleep(0.01)
        for _, other in silent:
            other.close()

    asyncio.run(_with(PATIENT, act))


def test_who_has_shown_a_link_is_counted_no_longer() -> None:
    grant = Grant(kind="link", workspace_id=WORKSPACE, port=8000, owner="ada", expires_at=2**40)
    token = sign(grant, signing_key(SETTINGS.token))

    async def act(connect: Connect) -> None:
        admitted = []
        for _ in range(12):
            reader, writer = await connect()
            writer.write(
                f"GET / HTTP/1.1\r\nHost: {HOST}\r\n{TOKEN_HEADER}: {token}\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            # Let in, though there is no control plane that could say where the workspace is.
            assert head.startswith(b"HTTP/1.1 502 "), head
            admitted.append(writer)
        for writer in admitted:
            writer.close()

    asyncio.run(_with(PATIENT, act))


def test_too_many_silent_connections_in_all_close_the_oldest() -> None:
    async def act(connect: Connect) -> None:
        oldest, first = await connect()
        others = [await connect() for _ in range(3)]
        assert await oldest.read() == b""
        for writer in (first, *(each for _, each in others)):
            writer.close()

    asyncio.run(_with(replace(PATIENT, max_unadmitted=3), act))


def test_a_trusted_proxy_may_connect_as_often_as_it_likes() -> None:
    async def act(connect: Connect) -> None:
        made = [await connect() for _ in range(8)]
        reader, writer = made[-1]
        writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 401 ")
        for _, each in made:
            each.close()

    asyncio.run(_with(replace(PATIENT, trusts=lambda _: True), act))


async def _answer(connect: Connect) -> bytes:
    reader, writer = await connect()
    writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
