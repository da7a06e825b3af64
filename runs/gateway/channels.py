"""What runs in a connection: shells, commands and subsystems, and forwards to a port."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, cast

import asyncssh
import structlog
from asyncssh.channel import SSHChannel

from runs.gateway.link import Channel, Link, LinkError
from runs.gateway.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runs.gateway.connection import GatewayConnection, SessionChannel

NOT_STARTED = 127
NO_STATUS = 255
ENDED_BY_OTHERS = {
    "cancelled": "the run was cancelled",
    "timeout": "the run's time limit was reached",
}
"""The reasons for an exit that are neither the program's nor the client's doing."""
UNWANTED_SECONDS = 5.0
"""How long a program may go on whose output nobody reads."""
MAX_CELLS = 65535
COLUMNS, ROWS = 80, 24
MAX_TERM = 128
SIGNALS = frozenset(
    [
        *("ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM"),
        *("USR1", "USR2"),
    ]
)
"""The signals that RFC 4254 names; others are told with the name of who invented them."""


class Place(Protocol):
    """The connection that a channel is in."""

    log: structlog.stdlib.BoundLogger

    def left(self, piped: Piped) -> None:
        """Know that a channel is over."""


class Piped:
    """Bytes both ways between a channel of the client and one of the link."""

    def __init__(self, connection: GatewayConnection, place: Place) -> None:
        self._connection = connection
        self._place = place
        self._log = place.log
        self._client_channel: SSHChannel[bytes] | None = None
        self._agent_channel: Channel | None = None
        self._paused = False
        self._owed = 0

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Pass input on; the client waits while that is too much."""
        assert self._client_channel is not None
        if self._agent_channel is not None and not self._agent_channel.write(data):
            self._client_channel.pause_reading()

    def eof_received(self) -> bool:
        """Pass the end of input on; output goes on."""
        if self._agent_channel is not None:
            self._agent_channel.write_eof()
        return True

    def may_write(self) -> None:
        """Let the client send again."""
        if self._client_channel is not None:
            self._client_channel.resume_reading()

    def pause_writing(self) -> None:
        """Ask for no more output: the client does not take it."""
        self._paused = True

    def resume_writing(self) -> None:
        """Ask for more."""
        self._paused = False
        self.settle()

    def _pass_on(self, data: bytes, datatype: int | None = None) -> None:
        if self._client_channel is None or self._client_channel.is_closing():
            return
        self._client_channel.write(data, datatype)
        self._owed += len(data)
        self.settle()

    def settle(self) -> None:
        """Ask for as much more output as has gone out."""
        if (
            self._owed
            and not self._paused
            and self._connection.takes
            and self._agent_channel is not None
        ):
            self._agent_channel.consumed(self._owed)
            self._owed = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Hang up: the client has closed the channel, or is gone."""
        self._client_channel = None
        self._place.left(self)
        if self._agent_channel is not None:
            self._agent_channel.close()


class ProgramSession(Piped, asyncssh.SSHServerSession[bytes]):
    """A shell, a command or a subsystem."""

    def __init__(self, connection: GatewayConnection, place: Place, link: Link) -> None:
        super().__init__(connection, place)
        self._link = link
        self._channel: SessionChannel | None = None
        self._pty: dict[str, Any] | None = None
        self._unwanted = False

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """Keep the client's channel."""
        self._client_channel = chan
        self._channel = cast("SessionChannel", chan)

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        """Have the program run at a terminal of its own."""
        term = term_type if term_type.isprintable() and len(term_type) <= MAX_TERM else "dumb"
        columns, rows = _size(*term_size[:2])
        self._pty = {"columns": columns, "rows": rows, "term": term}
        return True

    def shell_requested(self) -> bool:
        """Start the account's login shell."""
        return self._begin({"kind": "shell", "pty": self._pty})

    def exec_requested(self, command: str) -> bool:
        """Have the account's login shell execute a command."""
        return self._begin({"kind": "exec", "command": command, "pty": self._pty})

    def subsystem_requested(self, subsystem: str) -> bool:
        """Start a subsystem; which there are the workspace knows."""
        return self._begin({"kind": "subsystem", "name": subsystem})

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Pass the new size on."""
        if self._agent_channel is not None and self._pty is not None:
            self._agent_channel.resize(*_size(width, height))

    def signal_received(self, signal: str) -> None:
        """Pass a signal on, by name."""
        if self._agent_channel is not None and signal.isalnum() and len(signal) <= 16:
            self._agent_channel.signal(signal)

    def break_received(self, msec: int) -> bool:
        """Do what a break does at most terminals."""
        if self._agent_channel is not None and self._pty is not None:
            self._agent_channel.signal("INT")
        return True

    def output_unwanted(self) -> None:
        """Do what a pipe does to a program whose reader has gone; then give up on it."""
        if self._agent_channel is None or self._unwanted:
            return
        self._unwanted = True
        self._agent_channel.signal("PIPE")
        asyncio.get_running_loop().call_later(UNWANTED_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def tell(self, text: str) -> None:
        """Say something to the person beside the program's output."""
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write_stderr(f"\r\n{text}\r\n".encode())

    # -------------------------------------------------------------------------- what the link calls

    def opened(self) -> None:
        """Nothing to do: the client was told that its request is being seen to."""

    def refused(self, code: str, message: str) -> None:
        """Say why the program does not run."""
        self._log.info("channel_refused", code=one_line(code), detail=message)
        if self._channel is not None:
            self.tell(message)
            self._channel.exit(NOT_STARTED)

    def output(self, data: bytes, *, error: bool) -> None:
        """Pass output on."""
        if self._unwanted and not error and self._agent_channel is not None:
            self._agent_channel.consumed(len(data))
        else:
            self._pass_on(data, asyncssh.EXTENDED_DATA_STDERR if error else None)

    def output_ended(self) -> None:
        """Wait for the exit: programs end with it."""

    def exited(self, code: int | None, signal: str | None, reason: str) -> None:
        """Say how the program ended, after all of its output."""
        if self._channel is None:
            return
        if reason in ENDED_BY_OTHERS:
            self.tell(ENDED_BY_OTHERS[reason])
        if signal:
            name = signal.removeprefix("SIG")
            known = name if name in SIGNALS else f"{name}@openssh.com"
            self._channel.exit_with_signal(known, False)
        else:
            self._channel.exit(NO_STATUS if code is None else code)

    def lost(self) -> None:
        """Wait for the end of the connection, which follows with words."""

    def _begin(self, request: dict[str, Any]) -> bool:
        assert self._channel is not None
        request["env"] = self._channel.variables
        try:
            self._agent_channel = self._link.open(request, self)
        except LinkError:
            return False
        # Only at a terminal: what a program reads there may be an answer to somebody's script.
        if self._pty is not None and (notice := self._connection.take_notice()):
            self.tell(notice)
        return True


class ForwardSession(Piped, asyncssh.SSHTCPSession[bytes]):
    """A connection to a port in the workspace, which the agent has opened."""

    def __init__(self, connection: GatewayConnection, place: Place) -> None:
        super().__init__(connection, place)
        self._answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._early: list[bytes] = []
        self._said_all = False
        self._ended = False

    async def begin(self, link: Link, host: str, port: int) -> ForwardSession:
        """Have the agent connect. Raises ``ChannelOpenError`` with its reason when it cannot."""
        try:
            self._agent_channel = link.open({"kind": "forward", "host": host, "port": port}, self)
        except LinkError as error:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from None
        refusal = await self._answered
        if refusal:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, refusal)
        return self

    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        """Keep the client's channel, and pass on what came before it."""
        self._client_channel = chan
        for data in self._early:
            self._pass_on(data)
        self._early.clear()
        if self._ended:
            chan.close()
        elif self._said_all:
            chan.write_eof()

    # -------------------------------------------------------------------------- what the link calls

    def opened(self) -> None:
        """Know that the agent is connected."""
        self._answer("")

    def refused(self, code: str, message: str) -> None:
        """Know that it is not, and why."""
        self._answer(message)

    def output(self, data: bytes, *, error: bool) -> None:
        """Pass on what the port says; servers often speak first."""
        if self._client_channel is None:
            self._early.append(data)
        else:
            self._pass_on(data)

    def output_ended(self) -> None:
        """Say that the port sends no more."""
        self._said_all = True
        if self._client_channel is not None:
            self._client_channel.write_eof()

    def exited(self, code: int | None, signal: str | None, reason: str) -> None:
        """Close, after what is to be sent."""
        self._ended = True
        if self._client_channel is not None:
            self._client_channel.close()

    def lost(self) -> None:
        """Give up; the end of the connection follows."""
        self._answer("the session has ended")

    def _answer(self, refusal: str) -> None:
        if not self._answered.done():
            self._answered.set_result(refusal)


def _size(columns: int, rows: int) -> tuple[int, int]:
    """Return a size that a terminal can have; clients without one say 0."""
    return min(columns, MAX_CELLS) or COLUMNS, min(rows, MAX_CELLS) or ROWS
