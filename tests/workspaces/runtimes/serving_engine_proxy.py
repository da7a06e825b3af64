"""A proxy that is open during a test, and a client that writes to it what it likes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import LONG_WAIT
from workspaces.runtimes.docker.engine_proxy import EngineProxy, EngineProxyLimits

WAIT_SECONDS = LONG_WAIT


@dataclass
class ServingEngineProxy:
    """A proxy and the path of its socket."""

    proxy: EngineProxy
    path: Path

    @property
    def docker_host(self) -> str:
        return f"unix://{self.path}"

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(WAIT_SECONDS)
        connection.connect(str(self.path))
        return connection

    def say(self, data: bytes) -> tuple[int, bytes]:
        """Send bytes; return the status and everything until the proxy closes the connection."""
        with contextlib.closing(self.connect()) as connection:
            connection.sendall(data)
            received = b""
            while piece := connection.recv(65536):
                received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        return (int(head.split(b" ")[1]), body) if head else (0, b"")

    def ask(self, method: str, target: str, body: Any = None) -> tuple[int, bytes]:
        """Send one request on a connection of its own."""
        return self.say(request(method, target, body))

    def wait_empty(self) -> None:
        """Wait until no connection holds a place."""
        wait_for(lambda: self.proxy.open_connections == 0)


def request(method: str, target: str, body: Any = None, *, close: bool = True) -> bytes:
    """A well-formed request."""
    content = b"" if body is None else json.dumps(body).encode()
    connection = "Connection: close\r\n" if close else ""
    return (
        f"{method} {target} HTTP/1.1\r\nHost: docker\r\n{connection}"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode() + content


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for something that happens soon."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@contextlib.contextmanager
def serving_engine_proxy(
    docker_host: str, instance_id: str, limits: EngineProxyLimits | None = None
) -> Iterator[ServingEngineProxy]:
    """A proxy of this installation, served by a thread."""
    # Not pytest's folder: the path of a Unix socket must be short.
    with tempfile.TemporaryDirectory(prefix="svc-engineproxy-") as folder:
        path = Path(folder) / "engine.sock"
        proxy = EngineProxy(docker_host, instance_id, limits=limits)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(128)
        loop = asyncio.new_event_loop()
        stopped, serving = asyncio.Event(), threading.Event()

        async def serve() -> None:
            async with proxy.serving(listener):
                serving.set()
                await stopped.wait()

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        try:
            assert serving.wait(WAIT_SECONDS)
            yield ServingEngineProxy(proxy, path)
        finally:
            loop.call_soon_threadsafe(stopped.set)
            thread.join(WAIT_SECONDS)
            loop.close()
            listener.close()
