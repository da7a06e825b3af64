"""What we need of asyncssh beyond its hooks: bounded buffers, last words that arrive.

Held against asyncssh 2.24. Names with an underscore are its own; ``tests/runs/gateway``
notices when one of them goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import re
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, AnyStr, ClassVar, Protocol, cast, runtime_checkable

import asyncssh
from asyncssh.connection import SSHServerConnection
from asyncssh.constants import (
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_OPEN,
    MSG_IGNORE,
    MSG_USERAUTH_REQUEST,
)
from asyncssh.packet import SSHPacket, SSHPacketLogger

if TYPE_CHECKING:
    from asyncssh.misc import MaybeAwait

SIGNATURES = (
    *("ssh-ed25519", "sk-ssh-ed25519@openssh.com"),
    *("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    *("sk-ecdsa-sha2-nistp256@openssh.com", "webauthn-sk-ecdsa-sha2-nistp256@openssh.com"),
    *("rsa-sha2-512", "rsa-sha2-256"),
)
LOGIN_BYTES = 256 * 1024
"""No login takes more, with all the keys that may be tried."""
BUFFERED_BYTES = 4 * 1024 * 1024
SENT_TOGETHER_BYTES = 128 * 1024
LINGER_SECONDS = 2.0
MAX_LINGERING = 200
WINDOW_BYTES = 2 * 1024 * 1024
PACKET_BYTES = 32 * 1024
LEAST_PACKET_BYTES = 4096
"""Output in smaller pieces would keep everybody else waiting while it is cut up."""
MAX_DEFERRED_PACKETS = 16 * 1024
"""More than all windows of a connection hold; a key exchange that lasts longer is none."""
AGENT_REFUSED = "Agent forwarding is not supported by this gateway; the session has no agent."
MAX_VARIABLES = 64
MAX_ENVIRONMENT_BYTES = 32 * 1024
NAME_OF_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Login(Protocol):
    """Who is told of a connection what asyncssh's ``SSHServer`` is not."""

    def name_refused(self) -> str:
        """Return what to say of a user name that is no text."""

    def key_proven(self, key_data: bytes) -> None:
        """Know whose signature was right; the login succeeds next."""

    def key_offered(self) -> None:
        """Know that a key is offered, or that somebody signs with one.

        Raises ``DisconnectError`` when there have been enough.
        """

    def forwarding_refused(self, what: str) -> None:
        """Know that something was asked for that nobody gets."""

    def writable_again(self) -> None:
        """Know that the client takes what is sent again."""


@runtime_checkable
class Reader(Protocol):
    """A session that wants to know when nobody reads what its program puts out."""

    def output_unwanted(self) -> None:
        """Know it."""


class _Quiet(SSHPacketLogger):
    """Does not even look at the packets that it would log if it were told to."""

    def log_sent_packet(
        self, pkttype: int, pktid: int | None, packet: bytes | SSHPacket, note: str = ""
    ) -> None:
        """Log nothing."""

    def log_received_packet(
        self, pkttype: int, pktid: int | None, packet: bytes | SSHPacket, note: str = ""
    ) -> None:
        """Log nothing."""


class GatewayConnection(_Quiet, SSHServerConnection):
    """The server's side of one connection."""

    lingering: ClassVar[int] = 0

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: asyncssh.SSHServerConnectionOptions,
    ) -> None:
        super().__init__(loop, options)
        self._received = 0
        self._full = False
        self._unread = False
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._farewell: tuple[asyncio.Transport, asyncio.TimerHandle] | None = None
        self._notices: list[str] = []
        self._agent_refused = False

    @property
    def login(self) -> Login | None:
        """Who sees to this connection; None once it is over."""
        return cast("Login | None", self._owner)

    @property
    def takes(self) -> bool:
        """Whether what is sent goes out: the client reads, and no key exchange holds it up."""
        return not self._full and not self._deferred_packets

    @property
    def channel_count(self) -> int:
        """How many channels are open or being opened."""
        return len(self._channels)

    # ------------------------------------------------------------------------------ bounded buffers

    def _send(self, data: bytes) -> None:
        """Send what becomes of one turn of the event loop together."""
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)
        if self._outgoing_bytes >= SENT_TOGETHER_BYTES:
            self._send_outgoing()
        elif len(self._outgoing) == 1:
            self._loop.call_soon(self._send_outgoing)

    def _send_outgoing(self) -> None:
        if self._outgoing and self._transport is not None:
            self._transport.write(b"".join(self._outgoing))
            if self._transport.get_write_buffer_size() > BUFFERED_BYTES and not self._unread:
                # Whoever does not read the answers is not heard any further.
                self._unread = True
                self._transport.pause_reading()
        self._outgoing.clear()
        self._outgoing_bytes = 0

    def send_packet(
        self, pkttype: int, *args: bytes, handler: SSHPacketLogger | None = None
    ) -> None:
        """Send a packet, but none that says nothing.

        asyncssh puts one before each, for the sake of ciphers in CBC mode, which are not offered.
        """
        if pkttype != MSG_IGNORE:
            super().send_packet(pkttype, *args, handler=handler)
            if len(self._deferred_packets) > MAX_DEFERRED_PACKETS:
                self._deferred_packets.clear()
                self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        self._acknowledge_at_once()

    def _acknowledge_at_once(self) -> None:
        """Have the kernel not wait with its next acknowledgement, where it can be told.

        Until it has logged in, OpenSSH's client sends nothing more before it has got that: 40 ms.
        """
        if self._transport is not None and hasattr(socket, "TCP_QUICKACK"):
            sock = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def pause_writing(self) -> None:
        """Note that the client does not read as fast as we send."""
        self._full = True

    def resume_writing(self) -> None:
        """Note that it does again."""
        self._full = False
        if self._unread and self._transport is not None:
            self._transport.resume_reading()
        self._unread = False
        self._tell_writable()

    def _send_deferred_packets(self) -> None:
        super()._send_deferred_packets()
        self._tell_writable()

    def _tell_writable(self) -> None:
        if self.login is not None and self.takes:
            self.login.writable_again()

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        """Take what the client sends, unless that is more than any client has reason to."""
        if self._farewell is not None or not self._auth_complete:
            self._received += len(data)
            if self._received > LOGIN_BYTES:
                self.abort()
                return
        if self._transport is None:
            return  # its last words were said
        super().data_received(data, datatype)
        if not self._auth_complete:
            self._acknowledge_at_once()
        if len(self._inpbuf) > BUFFERED_BYTES:
            self.abort()

    # ----------------------------------------------------------------------------------- last words

    def _force_close(self, exc: Exception | None) -> None:
        """End the connection, but let the client have what was sent before.

        Closing a socket that holds unread data resets the connection, and with it the reason that
        was sent just now.
        """
        if self._transport is None:
            return
        self._send_outgoing()
        if self._transport.is_closing() or GatewayConnection.lingering >= MAX_LINGERING:
            super()._force_close(exc)
            return
        transport, self._transport = self._transport, None
        self._received = 0
        GatewayConnection.lingering += 1
        timer = self._loop.call_later(LINGER_SECONDS, transport.abort)
        self._farewell = (transport, timer)
        self._loop.call_soon(self._cleanup, exc)
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection just now
            transport.abort()

    def connection_lost(self, exc: Exception | None = None) -> None:
        """Know that the connection is closed, or that it has to be."""
        if self._farewell is not None:
            self._farewell[1].cancel()
            self._farewell = None
            GatewayConnection.lingering -= 1
        super().connection_lost(exc)

    def abort(self) -> None:
        """End the connection at once, without a word."""
        if self._farewell is not None:
            self._farewell[0].abort()
        elif self._transport is not None:
            super()._force_close(None)

    # ------------------------------------------------------------------------------------ the login

    def _process_userauth_request(
        self, pkttype: int, pktid: int, packet: SSHPacket
    ) -> MaybeAwait[None]:
        try:
            return super()._process_userauth_request(pkttype, pktid, packet)
        except asyncssh.IllegalUserName:
            if self.login is None:
                raise
            raise asyncssh.IllegalUserName(self.login.name_refused()) from None

    def _process_channel_open(self, pkttype: int, pktid: int, packet: SSHPacket) -> None:
        asked = SSHPacket(packet.get_remaining_payload())
        asked.get_string()
        channel, _, packet_bytes = asked.get_uint32(), asked.get_uint32(), asked.get_uint32()
        if packet_bytes < LEAST_PACKET_BYTES:
            text = f"packets have to hold {LEAST_PACKET_BYTES} bytes of data"
            self.send_channel_open_failure(channel, asyncssh.OPEN_RESOURCE_SHORTAGE, text, "en")
        else:
            super()._process_channel_open(pkttype, pktid, packet)

    _packet_handlers = {
        **SSHServerConnection._packet_handlers,
        MSG_CHANNEL_OPEN: _process_channel_open,
        MSG_USERAUTH_REQUEST: _process_userauth_request,
    }

    async def validate_public_key(
        self, username: str, key_data: bytes, msg: bytes, signature: bytes
    ) -> bool:
        """Tell whether a key may enter and has signed; no signature with SHA-1 counts."""
        if self.login is not None:
            self.login.key_offered()
        if msg and SSHPacket(signature).get_string() not in _SIGNATURES:
            return False
        if not await super().validate_public_key(username, key_data, msg, signature):
            return False
        if msg and self.login is not None:
            self.login.key_proven(key_data)
        return True

    # ----------------------------------------------------------------------------- what nobody gets

    async def attach_x11_listener(
        self,
        chan: asyncssh.SSHServerChannel[AnyStr],
        auth_proto: bytes,
        auth_data: bytes,
        screen: int,
    ) -> str | None:
        """Refuse windows of programs in the workspace."""
        if self.login is not None:
            self.login.forwarding_refused("X11")
        return None

    async def create_agent_listener(self) -> bool:
        """Refuse the client's keys to programs in the workspace."""
        if self.login is not None:
            self.login.forwarding_refused("agent")
        if not self._agent_refused:
            # OpenSSH's client wants no answer to this, and goes on as if it had been granted.
            self._agent_refused = True
            self._notices.append(AGENT_REFUSED)
        return False

    def take_notice(self) -> str:
        """Return, once, what the person at a terminal has to know; empty for nothing."""
        return self._notices.pop() if self._notices else ""


_SIGNATURES = frozenset(name.encode() for name in SIGNATURES)


class SessionChannel(_Quiet, asyncssh.SSHServerChannel[bytes]):
    """A channel of a session that takes few variables, and hears when nobody reads any more."""

    def __init__(self, connection: GatewayConnection, accept_env: Sequence[str]) -> None:
        super().__init__(
            connection,
            asyncio.get_running_loop(),
            allow_pty=True,
            line_editor=False,
            line_echo=False,
            line_history=0,
            max_line_length=0,
            encoding=None,
            errors="strict",
            window=WINDOW_BYTES,
            max_pktsize=PACKET_BYTES,
        )
        self.variables: dict[str, str] = {}
        self._accept_env = accept_env
        self._environment_bytes = 0

    def _close_send(self) -> None:
        """Close, after the end of the output: some clients read up to that and wait for it."""
        if self._send_state == "close_pending":
            self.send_packet(MSG_CHANNEL_EOF)
        super()._close_send()

    def _process_eow_at_openssh_dot_com_request(self, packet: SSHPacket) -> bool:
        packet.check_end()
        if isinstance(self._session, Reader):
            self._session.output_unwanted()
        return True

    def _process_env_request(self, packet: SSHPacket) -> bool:
        name_bytes, value_bytes = packet.get_string(), packet.get_string()
        packet.check_end()
        try:
            name, value = name_bytes.decode("ascii"), value_bytes.decode("utf-8")
        except UnicodeDecodeError:
            return False
        self._environment_bytes += len(name_bytes) + len(value_bytes)
        if (
            not NAME_OF_VARIABLE.fullmatch(name)
            or "\0" in value
            or len(self.variables) >= MAX_VARIABLES
            or self._environment_bytes > MAX_ENVIRONMENT_BYTES
            or not any(fnmatch.fnmatchcase(name, pattern) for pattern in self._accept_env)
        ):
            return False
        self.variables[name] = value
        return True
