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
        families = [family for family, _ in addresses[:MOST_ADDRESSES]]
        made = await loop.run_in_executor(pool, _sockets, pid, container_id, families)
    finally:
        pool.shutdown(wait=False)
    failure: OSError | None = None
    try:
        async with asyncio.timeout(timeout):
            for (_, address), sock in zip(addresses, made, strict=False):
                try:
                    await loop.sock_connect(sock, (address, port))
                except OSError as error:
                    failure = failure or error
                    continue
                made.remove(sock)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
    finally:
        for sock in made:
            sock.close()
    raise failure or OSError("there is no address")


def _sockets(
    pid: int, container_id: str, families: Sequence[socket.AddressFamily]
) -> list[socket.socket]:
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
    made = []
    for family in families:
        made.append(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
    return made
