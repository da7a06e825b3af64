"""Connections to one Docker Engine, kept from one caller to the next.

The SDK's sessions are not meant for several threads, so a connection belongs to one caller at a
time; opening one costs more than most of the calls made over it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import cast

import docker
from docker.transport.unixconn import UnixHTTPConnection

from workspaces.runtimes.docker.engine_api.engine_failures import engine_errors
from workspaces.runtimes.docker.engine_api.open_engine import OLDEST_API, Engine
from workspaces.runtimes.docker.networks import machine_routes

MAX_IDLE = 8
"""How many connections are kept while nobody uses them."""
MAX_SOCKETS = 4
"""How many sockets each of them has at the most: the SDK opens one for each address it asks."""


def _connect(connection: UnixHTTPConnection) -> None:
    """Connect as the SDK does, which leaves its socket open where nobody listens."""
    with contextlib.ExitStack() as held:
        opened = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        opened.settimeout(connection.timeout)
        opened.connect(connection.unix_socket)
        held.pop_all()
    connection.sock = opened


UnixHTTPConnection.connect = _connect  # type: ignore[method-assign, assignment]


class EngineConnections:
    """Connections to one engine, kept for the next caller. Safe to use from several threads."""

    def __init__(self, docker_host: str, instance_id: str) -> None:
        self._docker_host = docker_host
        self._instance_id = instance_id
        self._idle: list[docker.DockerClient] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    @contextlib.contextmanager
    def connect(self, timeout: float) -> Iterator[Engine]:
        """Connect for the block; whatever the SDK raises in it becomes a ``LaunchError``.

        ``timeout`` limits each call, in seconds. After trouble no connection is used again: the
        engine may have come back as another one, which speaks an older version of its API.
        """
        with engine_errors():
            client = self._take(timeout)
            try:
                client.api.timeout = cast("int", timeout)  # the type stubs know no fractions
                routes = machine_routes(self._docker_host, self._instance_id)
                yield Engine(client, self._instance_id, timeout, routes)
            except BaseException:
                client.close()
                self.close_idle()
                raise
            self._keep(client)

    def _take(self, timeout: float) -> docker.DockerClient:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        # Not version="auto": when the engine does not answer, that leaves its socket open.
        seconds = cast("int", timeout)  # the type stubs know no fractions
        probe = docker.DockerClient(self._docker_host, version=OLDEST_API, timeout=seconds)
        with contextlib.closing(probe):
            spoken = str(probe.version(api_version=False)["ApiVersion"])
        return docker.DockerClient(
            self._docker_host, version=spoken, timeout=seconds, num_pools=MAX_SOCKETS
        )

    def _keep(self, client: docker.DockerClient) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE:
                self._idle.append(client)
                return
        client.close()

    def close_idle(self) -> None:
        """Close the connections that nobody uses; the next call opens a new one."""
        with self._lock:
            idle = self._idle[:]
            self._idle.clear()
        _close_all(idle)


def _close_all(clients: list[docker.DockerClient]) -> None:
    for client in clients:
        client.close()
