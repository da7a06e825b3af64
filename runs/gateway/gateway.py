"""The whole gateway: it listens, knows who is there, and goes in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any

import asyncssh
import structlog

from controlplane.open_files import allow_many_open_files
from runs.gateway.configuration import Configuration
from runs.gateway.connection import SIGNATURES, GatewayConnection
from runs.gateway.control_plane import ControlPlane
from runs.gateway.host_key import load_host_key
from runs.gateway.limits import FailedLogins, Slots, Waiting
from runs.gateway.login import Login

BACKLOG = 512
LAST_SECONDS = 5.0
TICK_SECONDS = 0.1
FAREWELL = "the gateway is being stopped; connect again in a moment"
VERSION = "OpenSSH_compatible_svc"
"""OpenSSH's client tells only servers of this name that nobody reads a program's output any more;
without that ``ssh … yes | head -1`` never ends."""
CIPHERS = (
    *("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com"),
    *("aes256-ctr", "aes128-ctr"),
)
KEY_EXCHANGES = (
    *("mlkem768x25519-sha256", "curve25519-sha256", "curve25519-sha256@libssh.org"),
    *("ecdh-sha2-nistp256", "ecdh-sha2-nistp384", "ecdh-sha2-nistp521"),
    *("diffie-hellman-group16-sha512", "diffie-hellman-group14-sha256"),
)
MACS = (
    *("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com"),
    *("hmac-sha2-256", "hmac-sha2-512"),
)

logger = structlog.get_logger(__name__)


class Gateway:
    """Takes connections from ``start`` on, until ``serve`` is told to end."""

    def __init__(self, configuration: Configuration, host_key: asyncssh.SSHKey) -> None:
        self.configuration = configuration
        self.control_plane = ControlPlane(configuration.api_base_url, configuration.token)
        self.failed_logins = FailedLogins(
            configuration.failed_logins, configuration.failed_login_window
        )
        self.slots = Slots(
            configuration.max_connections, configuration.max_connections_per_principal
        )
        self._waiting: Waiting[Login] = Waiting(configuration.max_logins)
        self._host_key = host_key
        self._logins: set[Login] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> list[tuple[str, int]]:
        """Listen; return where. Raises ``OSError`` when that is not possible."""
        loop = asyncio.get_running_loop()
        options = await asyncssh.SSHServerConnectionOptions.construct(
            config=None,
            server_factory=lambda: Login(self),
            server_host_keys=[self._host_key],
            server_version=VERSION,
            kex_algs=list(KEY_EXCHANGES),
            encryption_algs=list(CIPHERS),
            mac_algs=list(MACS),
            compression_algs=None,
            signature_algs=list(SIGNATURES),
            gss_host=None,
            host_based_auth=False,
            kbdint_auth=False,
            password_auth=False,
            agent_forwarding=False,
            x11_forwarding=False,
            login_timeout=0,  # ours says why
            keepalive_interval=self.configuration.keepalive,
            keepalive_count_max=self.configuration.keepalive_count,
            tcp_keepalive=True,
        )
        self._server = await loop.create_server(
            lambda: GatewayConnection(loop, options),
            self.configuration.host,
            self.configuration.port,
            backlog=BACKLOG,
        )
        return [found.getsockname()[:2] for found in self._server.sockets]

    async def serve(self) -> None:
        """Serve until a signal comes, then drain; a second signal exits at once."""
        stopping = asyncio.Event()
        at_once = asyncio.Event()

        def stop() -> None:
            if stopping.is_set():
                at_once.set()
            stopping.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        await stopping.wait()
        logger.info("gateway_stopping", connections=len(self._logins))
        draining = asyncio.create_task(self.drain())
        hurrying = asyncio.create_task(at_once.wait())
        await asyncio.wait([draining, hurrying], return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, hurrying):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.control_plane.close()
        logger.info("gateway_stopped", connections=len(self._logins))

    async def drain(self) -> None:
        """Take nobody any more, give those who are here some time, then end them with words."""
        loop = asyncio.get_running_loop()
        if self._server is not None:
            self._server.close()
        await self._until_empty(loop.time() + self.configuration.drain)
        for login in list(self._logins):
            login.dismiss(FAREWELL)
        await self._until_empty(loop.time() + LAST_SECONDS)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_SECONDS)

    async def _until_empty(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while (self._logins or GatewayConnection.lingering) and loop.time() < deadline:
            await asyncio.sleep(TICK_SECONDS)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something whose end nobody waits for but ``drain``."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("gateway_task_failed", exc_info=error)

    # ------------------------------------------------------------------------ what connections tell

    def arrived(self, login: Login) -> None:
        """Know of a connection; who has been waiting longest goes when there are too many."""
        self._logins.add(login)
        evicted = self._waiting.add(login)
        if evicted is not None:
            evicted.dismiss(
                f"more than {self.configuration.max_logins} are logging in; try again in a moment",
                asyncssh.DISC_TOO_MANY_CONNECTIONS,
            )

    def logged_in(self, login: Login) -> None:
        """Know that a connection has logged in."""
        self._waiting.remove(login)

    def left(self, login: Login) -> None:
        """Know that a connection is over."""
        self._waiting.remove(login)
        self._logins.discard(login)


def run_gateway(configuration: Configuration) -> None:
    """Run a gateway until a signal comes.

    Raises ``HostKeyError``, and ``OSError`` when it cannot listen.
    """
    # At INFO asyncssh tells what people type on command lines.
    asyncssh.set_log_level("WARNING")
    key = load_host_key(configuration.host_key_path)
    allow_many_open_files()  # each connection takes two
    asyncio.run(_run(configuration, key))


async def _run(configuration: Configuration, key: asyncssh.SSHKey) -> None:
    gateway = Gateway(configuration, key)
    addresses = await gateway.start()
    logger.info(
        "gateway_started",
        addresses=[f"{host}:{port}" for host, port in addresses],
        fingerprint=key.get_fingerprint("sha256"),
        api=configuration.api_base_url,
        recorded=configuration.recorded,
    )
    await gateway.serve()
