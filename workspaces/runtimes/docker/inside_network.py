"""TCP connections that begin inside a container's network, from this process and without the agent.

A thread enters the network namespace of the container's first process, makes sockets there and
ends; they stay in that network wherever they are used. This takes root on the engine's machine.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from workspaces.runtimes.docker import agent_socket

CLONE_NEWNET = 0x40000000
MOST_ADDRESSES = 4

Address = tuple[socket.AddressFamily, str]
"""The family of an address, and the address."""


class NoWayInside(Exception):
    """The container's network cannot be entered from here; another way may lead there."""


async def connect_inside(
    pid: int, container_id: str, addresses: Sequence[Address], port: int, *, timeout: float
) -> socket.socket:
    """Return a connection from inside a container's network to the first address that takes it.

    ``addresses`` are no names. Raises ``NoWayInside``, ``TimeoutError``, and the ``OSError`` of the
    first address.
    """
    loop = asyncio.get_running_loop()
    # Its thread is in another network afterwards, so it serves nobody else.
    pool = ThreadPoolExecutor(1, "inside-network")
    try:
        wanted = addresses[:MOST_ADDRESSES]
        made = await loop.run_in_executor(pool, _sockets, pid, container_id, wanted)
    finally:
        pool.shutdown(wait=False)
    failure: OSError | None = None
    try:
        async with asyncio.timeout(timeout):
            for address, sock in list(made.items()):
                try:
                    await loop.sock_connect(sock, (address, port))
                except OSError as error:
                    failure = failure or error
                    continue
                del made[address]
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
    finally:
        for sock in made.values():
            sock.close()
    raise failure or OSError("there is no address")


def _sockets(pid: int, container_id: str, addresses: Sequence[Address]) -> dict[str, socket.socket]:
    """Return a socket for each address, but for those of a family that the kernel does not have."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NoWayInside(str(error)) from error
    try:
        # Asked after it was opened: the number may have been another process's before.
        if not agent_socket.is_first_process(pid, container_id):
            raise NoWayInside("the process is not the container's")
        if libc.setns(network, CLONE_NEWNET) != 0:
            raise NoWayInside(os.strerror(ctypes.get_errno()))
    finally:
        os.close(network)
    made: dict[str, socket.socket] = {}
    failure: OSError | None = None
    for family, address in addresses:
        try:
            made[address] = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            failure = error
    if failure is not None and not made:
        raise failure
    return made
