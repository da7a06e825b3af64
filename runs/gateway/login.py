"""One connection from its first byte to its last: who it is, what it may do, when it has to go."""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
from typing import TYPE_CHECKING, Any, Protocol, cast

import asyncssh
import structlog

from runs.gateway.channels import ForwardSession, Piped, ProgramSession
from runs.gateway.connection import PACKET_BYTES, WINDOW_BYTES, GatewayConnection, SessionChannel
from runs.gateway.control_plane import ControlPlane, ControlPlaneError, Principal
from runs.gateway.entry import Entry, EntryRefused, Visitor
from runs.gateway.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from runs.gateway.configuration import Configuration
    from runs.gateway.limits import FailedLogins, Slots
    from runs.gateway.link import Link

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
EXAMPLE = "01890a5d-ac96-774b-bcce-b302099a8057"
MAX_CLIENT = 255
LOGGED_REFUSALS = 20
"""So many of what one connection does not get are told, else it could fill the log."""
TOLD_SECONDS = 0.3

logger = structlog.get_logger(__name__)


class Logins(Protocol):
    """What a connection asks of the gateway that took it."""

    configuration: Configuration
    control_plane: ControlPlane
    failed_logins: FailedLogins
    slots: Slots

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that outlives the connection."""

    def arrived(self, login: Login) -> None:
        """Know of a connection."""

    def logged_in(self, login: Login) -> None:
        """Know that a connection has logged in."""

    def left(self, login: Login) -> None:
        """Know that a connection is over."""


class Login(asyncssh.SSHServer):
    """What the gateway knows of one connection."""

    def __init__(self, gateway: Logins) -> None:
        self.log = logger.bind(connection=secrets.token_hex(6))
        self._gateway = gateway
        self._configuration = gateway.configuration
        self._loop = asyncio.get_running_loop()
        self._connection: GatewayConnection | None = None
        self._address = ""
        self._port = 0
        self._timer: asyncio.TimerHandle | None = None
        self._user = ""
        self._workspace_id = ""
        self._welcomed = False
        self._offers = 0
        self._keys: dict[bytes, Principal | None] = {}
        self._principal: Principal | None = None
        self._placed = False
        self._entry: Entry | None = None
        self._entered: asyncio.Future[Link] = self._loop.create_future()
        self._piped: set[Piped] = set()
        self._reason = ""
        self._refusals = 0

    # -------------------------------------------------------------------------------- coming, going

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Give the connection some time to log in."""
        self._connection = cast("GatewayConnection", conn)
        self._address, self._port = (conn.get_extra_info("peername") or ("", 0))[:2]
        self.log = self.log.bind(address=self._address, port=self._port)
        self.log.debug("connection_opened")
        self._timer = self._loop.call_later(
            self._configuration.login_grace,
            self.dismiss,
            f"nobody has logged in within {self._configuration.login_grace:g} seconds",
        )
        self._gateway.arrived(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that was prepared for it."""
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()
        if not self._entered.done():
            self._entered.cancel()
        reason = self._reason or (one_line(str(exc)) if exc is not None else "")
        told = self.log.info if self._principal is not None else self.log.debug
        told("connection_closed", reason=reason)
        if self._placed and self._principal is not None:
            self._gateway.slots.release(self._principal.id)
            self._placed = False
        self._gateway.left(self)
        if self._entry is not None:
            self._entry.leave()

    def dismiss(self, reason: str, code: int = asyncssh.DISC_BY_APPLICATION) -> None:
        """End the connection and say why."""
        if self._connection is None or self._reason:
            return
        self._reason = reason
        self.log.info("connection_dismissed", reason=one_line(reason))
        self._connection.disconnect(code, one_line(reason))

    # ------------------------------------------------------------------------------------ the login

    def begin_auth(self, username: str) -> bool:
        """Refuse names that no workspace has, before anybody is asked about them."""
        found = username.removeprefix(f"{self._configuration.prefix}-")
        if found == username or not UUID.fullmatch(found):
            self.log.info("user_name_refused", user=one_line(username, 100))
            raise asyncssh.IllegalUserName(self.name_refused(username))
        self._user, self._workspace_id = username, found.lower()
        if self._configuration.banner and not self._welcomed:
            self._say(self._configuration.banner)
        self._welcomed = True
        return True

    def name_refused(self, username: str = "") -> str:
        """Return what to say of a user name that is none."""
        shown = f'"{one_line(username, 60)}"' if username else "that"
        prefix = self._configuration.prefix
        return (
            f"the user name has to be {prefix}-<workspace id>, as in {prefix}-{EXAMPLE}; "
            f"{shown} is not one"
        )

    def public_key_auth_supported(self) -> bool:
        """Let people in by their keys, and by nothing else."""
        return True

    def key_offered(self) -> None:
        """Count what is tried; see ``connection.Login``."""
        self._offers += 1
        # Each key may be asked about, and then used.
        if self._offers > 2 * self._configuration.max_keys:
            raise self._too_many()

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Tell whether somebody has registered this key. Proves nothing yet."""
        blob = key.public_data
        is_new = blob not in self._keys
        if is_new:
            if len(self._keys) >= self._configuration.max_keys:
                raise self._too_many()
            self._keys[blob] = await self._resolve(key)
        principal = self._keys[blob]
        if principal is not None:
            return True
        fingerprint = key.get_fingerprint("sha256")
        delay = self._gateway.failed_logins.delay_after_failure(self._address, self._loop.time())
        self.log.info("key_unknown", fingerprint=fingerprint, delay=delay)
        if delay:
            await asyncio.sleep(delay)
        if is_new:
            self._say(
                f"The key {fingerprint} is not registered. "
                "Add its .pub file with POST /v1/ssh-keys, then connect again."
            )
        return False

    async def _resolve(self, key: asyncssh.SSHKey) -> Principal | None:
        encoded = base64.b64encode(key.public_data).decode()
        try:
            return await self._gateway.control_plane.resolve_principal(key.get_algorithm(), encoded)
        except ControlPlaneError as error:
            self._reason = str(error)
            raise asyncssh.DisconnectError(
                asyncssh.DISC_SERVICE_NOT_AVAILABLE, str(error)
            ) from error

    def _too_many(self) -> asyncssh.DisconnectError:
        return asyncssh.DisconnectError(
            asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE,
            f"at most {self._configuration.max_keys} keys are tried; name the right one with "
            "ssh -i <file> -o IdentitiesOnly=yes",
        )

    def _say(self, text: str) -> None:
        if self._connection is not None:
            lines = "".join(f"{line}\r\n" for line in text.splitlines())
            self._connection.send_auth_banner(lines)

    def key_proven(self, key_data: bytes) -> None:
        """Know whose signature was right."""
        self._principal = self._keys.get(key_data)

    def auth_completed(self) -> None:
        """Prepare the session, while the client asks for its first channel."""
        if self._timer is not None:
            self._timer.cancel()
        principal, connection = self._principal, self._connection
        if principal is None or connection is None:
            # asyncssh lets nobody pass without ``key_proven``; if ever it did, this holds.
            self.dismiss("nobody has logged in")
            return
        self._gateway.logged_in(self)
        self.log = self.log.bind(
            principal=one_line(principal.id),
            fingerprint=one_line(principal.fingerprint),
            workspace=self._workspace_id,
        )
        refusal = self._gateway.slots.acquire(principal.id)
        if refusal:
            self.dismiss(refusal, asyncssh.DISC_TOO_MANY_CONNECTIONS)
            return
        self._placed = True
        client = str(connection.get_extra_info("client_version") or "")
        origin = {
            "address": self._address,
            "port": self._port,
            "client": one_line(client, MAX_CLIENT),
            "user": self._user,
            "key": principal.fingerprint,
        }
        self._entry = Entry(
            self._configuration,
            self._gateway.control_plane,
            Visitor(principal, self._workspace_id, origin),
            self.log,
            self._session_ended,
        )
        self._gateway.spawn(self._enter(self._entry))

    async def _enter(self, entry: Entry) -> None:
        started = self._loop.time()
        try:
            await entry.prepare()
        except Exception as error:
            if isinstance(error, EntryRefused):
                self.log.info("entry_refused", reason=str(error))
            else:
                self.log.exception("entry_failed")
                error = EntryRefused("the gateway has failed; tell the operator")
            await entry.release()
            if not self._entered.done():
                self._entered.set_exception(
                    asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error))
                )
                self._entered.exception()
            self.dismiss(str(error))
            return
        self.log = entry.log
        self.log.info("session_begun", seconds=round(self._loop.time() - started, 3))
        if not self._entered.done():
            self._entered.set_result(entry.link)
        self._watch_idle()

    def _session_ended(self) -> None:
        """Release what there is; when the client is still there, tell it why."""
        if self._entry is not None and self._entered.done():
            self._gateway.spawn(self._end(self._entry))

    async def _end(self, entry: Entry) -> None:
        if self._connection is not None:
            self.dismiss(await entry.why_ended())
        await entry.release()

    # --------------------------------------------------------------------------------- the channels

    def session_requested(self) -> tuple[SessionChannel, Awaitable[ProgramSession]]:
        """Take a shell, a command or a subsystem."""
        connection = self._may_open()
        return SessionChannel(connection, self._configuration.accept_env), self._program(connection)

    async def _program(self, connection: GatewayConnection) -> ProgramSession:
        link = await asyncio.shield(self._entered)
        session = ProgramSession(connection, self, link)
        self._piped.add(session)
        return session

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> tuple[asyncssh.SSHTCPChannel[bytes], Awaitable[ForwardSession]]:
        """Take a forward to a port in the workspace, if it is one that is allowed."""
        connection = self._may_open()
        allowed = self._configuration.forward_hosts
        host = dest_host.lower()
        if "*" not in allowed and host not in allowed:
            self._tell_refused("forward_refused", host=one_line(dest_host, 100), port=dest_port)
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED,
                f"no forward to {one_line(dest_host, 100)}: SSH_GATEWAY_FORWARD_HOSTS allows "
                f"{', '.join(allowed) or 'none'}",
            )
        if not 0 < dest_port < 65536:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, f"there is no port {dest_port}"
            )
        channel = connection.create_tcp_channel(
            encoding=None, window=WINDOW_BYTES, max_pktsize=PACKET_BYTES
        )
        return channel, self._forward(connection, dest_host, dest_port)

    async def _forward(self, connection: GatewayConnection, host: str, port: int) -> ForwardSession:
        link = await asyncio.shield(self._entered)
        session = ForwardSession(connection, self)
        self._piped.add(session)
        try:
            return await session.begin(link, host, port)
        except asyncssh.ChannelOpenError:
            self._piped.discard(session)
            raise

    def unix_connection_requested(self, dest_path: str) -> bool:
        """Refuse sockets in the workspace's files."""
        self.forwarding_refused("socket")
        raise asyncssh.ChannelOpenError(
            asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED,
            "Unix sockets are not forwarded; forward a TCP port",
        )

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        """Refuse to listen in the workspace on the client's behalf."""
        self.forwarding_refused("remote")
        return False

    def unix_server_requested(self, listen_path: str) -> bool:
        """Refuse to listen in the workspace on the client's behalf."""
        self.forwarding_refused("remote")
        return False

    def forwarding_refused(self, what: str) -> None:
        """Tell in the log, and to clients that listen, that this is not to be had."""
        if self._tell_refused("forwarding_refused", what=what) and self._connection is not None:
            self._connection.send_debug(f"{what} forwarding is not supported by this gateway")

    def _tell_refused(self, event: str, **facts: object) -> bool:
        """Log a refusal, unless there have been many; return whether it was told."""
        self._refusals += 1
        if self._refusals <= LOGGED_REFUSALS:
            self.log.info(event, **facts)
        return self._refusals <= LOGGED_REFUSALS

    def _may_open(self) -> GatewayConnection:
        connection = self._connection
        if connection is None:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "the session has ended")
        most = self._configuration.max_channels
        if connection.channel_count >= most:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_RESOURCE_SHORTAGE, f"a connection has at most {most} channels"
            )
        return connection

    def left(self, piped: Piped) -> None:
        """Know that a channel is over."""
        self._piped.discard(piped)

    def writable_again(self) -> None:
        """Have the channels ask for more output."""
        for piped in list(self._piped):
            piped.settle()

    def tell(self, text: str) -> None:
        """Say something to whoever sits at a program of this connection."""
        for piped in list(self._piped):
            if isinstance(piped, ProgramSession):
                piped.tell(text)

    def _watch_idle(self) -> None:
        limit = self._configuration.idle_timeout
        if not limit or self._connection is None or self._entry is None:
            return
        left = self._entry.link.used_at + limit - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._watch_idle)
            return
        reason = f"there was no traffic for {limit:g} seconds"
        self.tell(f"The connection is closed: {reason}.")
        # Clients that hear of a disconnect do not show any more what came just before.
        self._timer = self._loop.call_later(TOLD_SECONDS, self.dismiss, reason)
