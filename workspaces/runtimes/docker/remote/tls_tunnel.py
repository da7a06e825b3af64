"""A way to an engine of another machine: a socket of this process, and TLS from there on.

Whatever speaks to an engine (the SDK, raw connections, asyncio, Docker's own program) can do that
over a unix socket, half-closed connections included, which the ``ssl`` module does not offer. So
one place knows of TLS: what comes over the socket goes to the engine, and back. The engine is
believed by the CA of its certificate and by its name, and believes us by ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from workspaces.runtimes.base import LaunchError

log = structlog.get_logger(__name__)

CHUNK_BYTES = 256 * 1024
CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 10
PORT = 2376
CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine listens, and the folder with ``ca.pem``, ``cert.pem`` and ``key.pem``."""

    host: str
    port: int
    folder: Path

    @classmethod
    def of(cls, url: str, folder: Path) -> EngineAddress:
        """Take ``tcp://host:port`` apart; raises ``adapter-unavailable`` for anything else."""
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port or PORT
        except ValueError:
            host, port = None, PORT
        if parts.scheme != "tcp" or not host:
            raise LaunchError("adapter-unavailable", "The engine's address is not usable.")
        return cls(host, port, folder)

    def context(self) -> ssl.SSLContext:
        """Return what a connection is made with; raises ``adapter-unavailable``."""
        try:
            context = ssl.create_default_context(cafile=str(self.folder / CA_FILE))
            context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)
        except (OSError, ssl.SSLError) as error:
            raise LaunchError(
                "adapter-unavailable", "The certificates for the engine cannot be used."
            ) from error
        return context


class TlsTunnel:
    """Listens on a socket of its own until :meth:`close`; ``docker_host`` is its address."""

    def __init__(self, address: EngineAddress) -> None:
        self._address = address
        self._context = address.context()
        # Readable by nobody else: whoever reaches the socket reaches the engine.
        self._folder = tempfile.TemporaryDirectory(prefix="svc-engine-", dir="/tmp")
        self._path = str(Path(self._folder.name) / "engine.sock")
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        listening = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(listening,), name="engine tunnel", daemon=True
        )
        self._thread.start()
        listening.wait()
        self.docker_host = f"unix://{self._path}"

    def close(self) -> None:
        """End it, and the connections over it."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._folder.cleanup()

    def _run(self, listening: threading.Event) -> None:
        try:
            self._loop.run_until_complete(self._listen(listening))
        finally:
            listening.set()
            self._loop.close()

    async def _listen(self, listening: threading.Event) -> None:
        server = await asyncio.start_unix_server(self._serve, self._path, limit=CHUNK_BYTES)
        Path(self._path).chmod(0o600)
        listening.set()
        await self._ended.wait()
        server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next round

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection; it is closed when the engine cannot be reached."""
        carried = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                carried = await _Carried.to(self._address, self._context)
            await carried.carry(reader, writer)
        except (OSError, TimeoutError) as error:
            log.warning("engine_not_reached", host=self._address.host, reason=str(error)[:200])
        except asyncio.CancelledError:
            pass  # the tunnel ends; asyncio would tell of a task that was cancelled
        finally:
            if carried is not None:
                carried.close()
            writer.close()


class _Carried:
    """One TLS connection whose two directions end apart from each other."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        host: str,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._opened: deque[bytes] = deque()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    @classmethod
    async def to(cls, address: EngineAddress, context: ssl.SSLContext) -> _Carried:
        reader, writer = await asyncio.open_connection(
            address.host, address.port, limit=CHUNK_BYTES
        )
        _keep_alive(writer)
        carried = cls(reader, writer, context, address.host)
        try:
            await carried._shake_hands()
        except BaseException:
            carried.close()
            raise
        return carried

    def close(self) -> None:
        self._writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on both directions until the engine's has ended, or either side has gone."""
        sending = asyncio.ensure_future(self._send_all(reader))
        try:
            await self._receive_all(writer)
        except (OSError, ssl.SSLError):
            writer.transport.abort()
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, ssl.SSLError):
                await sending

    async def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._take()
                continue
            await self._flush()
            return

    async def _send_all(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK_BYTES):
            self._tls.write(data)
            await self._flush()
        # The end of this direction alone. What has come of the other one is opened before: it would
        # be taken for a wrong answer to the end, and dropped.
        with contextlib.suppress(ssl.SSLError):
            while data := self._tls.read(CHUNK_BYTES):
                self._opened.append(data)
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        await self._flush()

    async def _receive_all(self, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                data = self._opened.popleft() if self._opened else self._tls.read(CHUNK_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()  # TLS has something of its own to say now and then
                await self._take()
                continue
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                data = b""
            if not data:
                break
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        await writer.drain()

    async def _take(self) -> None:
        data = await self._reader.read(CHUNK_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())
            await self._writer.drain()


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Have the kernel notice a machine that is gone: it says nothing by itself."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS),
        (socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS),
        (socket.TCP_KEEPCNT, 3),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
