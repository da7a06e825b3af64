"""Raw connections to the Docker Engine, for what the SDK cannot do within limits.

The SDK loses output that arrives together with the answer to an exec's start, and reads an archive
without a time limit. Here every wait has one.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

from workspaces.runtimes import boot
from workspaces.runtimes.base import LaunchError

ARCHIVE_CHUNK_BYTES = 256 * 1024
_MAX_HEADER_BYTES = 64 * 1024
_MAX_ERROR_BYTES = 16 * 1024


class EngineConnection(http.client.HTTPConnection):
    """One HTTP connection to ``unix://…`` or ``tcp://…``; ``timeout`` limits each wait."""

    def __init__(self, docker_host: str, timeout: float) -> None:
        address = urlsplit(docker_host)
        self._path = ""
        if address.scheme == "unix":
            self._path = docker_host.removeprefix("unix://")
            if not self._path.startswith("/"):
                self._path = f"/{self._path}"
            super().__init__("localhost", timeout=timeout)
        elif address.scheme in ("tcp", "http") and address.hostname:
            super().__init__(address.hostname, address.port or 2375, timeout=timeout)
        else:
            raise LaunchError("adapter-unavailable", "The Docker Engine's address is not usable.")

    def connect(self) -> None:
        """Open the connection."""
        if self._path:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        else:
            super().connect()
            # A machine that is gone says nothing; without this nobody would ever know.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def start_exec(
    docker_host: str, api: str, exec_id: str, *, timeout: float
) -> tuple[socket.socket, bytes]:
    """Start an exec; return the connection to its streams and what came over it already."""
    body = json.dumps({"Detach": False, "Tty": False}).encode()
    request = (
        f"POST /v{api}/exec/{quote(exec_id, safe='')}/start HTTP/1.1\r\nHost: docker\r\n"
        "Content-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    connection = EngineConnection(docker_host, timeout)
    try:
        connection.connect()
        connection.sock.sendall(request + body)
        received = b""
        while b"\r\n\r\n" not in received:
            chunk = connection.sock.recv(65536)
            if not chunk or len(received) > _MAX_HEADER_BYTES:
                raise OSError("no answer to the start of an exec")
            received += chunk
        header, _, rest = received.partition(b"\r\n\r\n")
        answer = re.match(rb"HTTP/1\.[01] (\d{3})", header)
        status = int(answer[1]) if answer else 0
        # Engines of old answer 200 and upgrade all the same.
        if status not in (101, 200):
            raise refusal(status, rest[:_MAX_ERROR_BYTES])
    except BaseException:
        connection.close()
        raise
    return connection.sock, rest


@contextlib.contextmanager
def open_archive(
    docker_host: str, api: str, container_id: str, path: str, *, timeout: float
) -> Iterator[Iterator[bytes] | None]:
    """Open the tar stream of a path in a container; None when there is no such thing.

    Raises ``LaunchError`` only, now and while the stream is read.
    """
    connection = EngineConnection(docker_host, timeout)
    target = f"/v{api}/containers/{quote(container_id, safe='')}/archive?path={quote(path)}"
    with contextlib.closing(connection), contextlib.ExitStack() as stack:
        with _errors():
            connection.request("GET", target)
            response = stack.enter_context(contextlib.closing(connection.getresponse()))
            status = response.status
            said = b"" if status == 200 else response.read(_MAX_ERROR_BYTES)
        if status not in (200, 404):
            raise refusal(status, said)
        yield _chunks(response) if status == 200 else None


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        with _errors():
            chunk = response.read(ARCHIVE_CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise LaunchError(
            "adapter-unavailable", "The connection to the Docker Engine was lost."
        ) from error


def refusal(status: int, said: bytes) -> LaunchError:
    """Return the error for an answer of the engine that is no success."""
    if status == 404:
        return LaunchError("runtime-gone", "The workspace's container is gone.")
    if status == 409:
        return LaunchError("runtime-not-running", "The workspace's container is not running.")
    try:
        reason = str(json.loads(said)["message"])
    except (ValueError, KeyError, TypeError):
        reason = said.decode("utf-8", "replace") or "no reason given"
    return LaunchError(
        "adapter-unavailable",
        f"The Docker Engine did not do what was asked: {boot.one_line(reason)}",
    )
