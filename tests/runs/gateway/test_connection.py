"""How connections end, when the network has its say."""

from __future__ import annotations

import asyncio
import socket
import struct

import asyncssh
import pytest

from runs.gateway.connection import GatewayConnection
from tests.support.waiting import LONG_WAIT

RESET = struct.pack("ii", 1, 0)


@pytest.mark.parametrize("dismissed", [False, True])
def test_a_client_that_is_reset_in_the_middle_of_its_end_is_noticed(dismissed: bool) -> None:
    """The reset comes after the end was read, and before anything is done about it."""

    async def end() -> None:
        loop = asyncio.get_running_loop()
        lost, made = asyncio.Event(), asyncio.Event()

        class Owner(asyncssh.SSHServer):
            def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
                made.set()

            def connection_lost(self, exc: Exception | None) -> None:
                lost.set()

        class Connection(GatewayConnection):
            def eof_received(self) -> None:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.close()
                if dismissed:
                    self.disconnect(asyncssh.DISC_BY_APPLICATION, "over")
                super().eof_received()

        options = await asyncssh.SSHServerConnectionOptions.construct(
            config=None,
            server_factory=Owner,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            gss_host=None,
            login_timeout=0,
        )
        server = await loop.create_server(lambda: Connection(loop, options), "127.0.0.1", 0)
        client = socket.create_connection(server.sockets[0].getsockname(), 5)
        async with asyncio.timeout(LONG_WAIT):
            await made.wait()
            client.shutdown(socket.SHUT_WR)
            await lost.wait()
            while GatewayConnection.lingering:
                await asyncio.sleep(0.01)
        server.close()

    asyncio.run(end())
