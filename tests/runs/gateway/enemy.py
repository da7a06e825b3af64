"""Clients that mean harm: they speak SSH as well as it serves them, and say what they like."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import asyncssh
from asyncssh.connection import SSHClientConnection, SSHClientConnectionOptions
from asyncssh.packet import SSHPacket

from tests.stack.gateway_process import GatewayProcess
from tests.stack.ssh import Client
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

(SERVICE_REQUEST, KEXINIT, USERAUTH_REQUEST, GLOBAL_REQUEST, CHANNEL_OPEN) = (5, 20, 50, 80, 90)
(OPEN_CONFIRMED, OPEN_REFUSED, WINDOW_ADJUST, DATA, EXTENDED, EOF) = (91, 92, 93, 94, 95, 96)
(CLOSE, REQUEST, SUCCESS, FAILURE) = (97, 98, 99, 100)
WIDE = 2**32 - 1
asyncssh.set_log_level("ERROR")
ACCIDENTS = (
    *("Traceback", "never retrieved", "Exception in callback", "Fatal error"),
    *("gateway_task_failed", "was never awaited", "Unhandled"),
)
"""What a log says when nobody has thought of something."""


def text(value: bytes | str) -> bytes:
    """Return a string as SSH writes it."""
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("!I", len(content)) + content


def number(value: int) -> bytes:
    """Return a number as SSH writes it."""
    return struct.pack("!I", value)


class _Anything:
    """Stands for every channel there may be, and keeps what is said to it."""

    def __init__(self, enemy: Enemy) -> None:
        self._enemy = enemy

    def log_received_packet(self, *_: object) -> None:
        """Log nothing."""

    def process_packet(self, kind: int, _: int, packet: SSHPacket) -> bool:
        """Keep what came."""
        self._enemy.heard(kind, packet.get_remaining_payload())
        return True

    def process_connection_close(self, _: object) -> None:
        """Nothing ends that never began."""


class _EveryChannel(dict[int, Any]):
    """Has any channel that is asked for."""

    def __init__(self, enemy: Enemy) -> None:
        super().__init__()
        self._anything = _Anything(enemy)

    def __missing__(self, _: int) -> _Anything:
        return self._anything


class Enemy(SSHClientConnection):
    """A client's end whose packets are the test's. It acknowledges nothing by itself."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: SSHClientConnectionOptions,
        *,
        stops_before_login: bool = False,
    ) -> None:
        super().__init__(loop, options, wait=None)
        self._stops = stops_before_login
        self._channels = _EveryChannel(self)
        self.secure: asyncio.Future[None] = loop.create_future()
        """Done when the keys are exchanged."""
        self.inside: asyncio.Future[None] = loop.create_future()
        """Done when it is logged in."""
        self.over: asyncio.Future[str] = loop.create_future()
        """Done with the other side's last words."""
        self.counts: dict[int, int] = {}
        """How many packets of each kind came."""
        self.theirs = 0
        """The gateway's number of the channel that was confirmed last."""
        self.output = 0
        """How many bytes of output came."""

    def send_service_request(self, service: bytes) -> None:
        """Know that the keys are exchanged."""
        if not self.secure.done():
            self.secure.set_result(None)
        if not self._stops:
            super().send_service_request(service)

    def heard(self, kind: int, payload: bytes) -> None:
        """Count what came."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == DATA:
            self.output += len(payload) - 4

    def _opened(self, kind: int, _: int, packet: SSHPacket) -> None:
        payload = packet.get_remaining_payload()
        if kind == OPEN_CONFIRMED:
            self.theirs = int.from_bytes(payload[4:8], "big")
        self.heard(kind, payload)

    def _answered(self, kind: int, _: int, packet: SSHPacket) -> None:
        self.heard(kind, packet.get_remaining_payload())

    def _accepted(self, kind: int, number: int, packet: SSHPacket) -> None:
        if self._stops:
            self.heard(kind, packet.get_remaining_payload())
        else:
            cast("Any", SSHClientConnection._packet_handlers[6])(self, kind, number, packet)

    def _succeeded(self, kind: int, count: int, packet: SSHPacket) -> Any:
        result = cast("Any", SSHClientConnection._packet_handlers[52])(self, kind, count, packet)
        if not self.inside.done():
            self.inside.set_result(None)
        return result

    _packet_handlers = {
        **SSHClientConnection._packet_handlers,
        52: _succeeded,
        81: _answered,
        6: _accepted,
        82: _answered,
        OPEN_CONFIRMED: _opened,
        OPEN_REFUSED: _opened,
    }

    def connection_lost(self, exc: Exception | None = None) -> None:
        """Keep the last words."""
        self._finish(exc)
        super().connection_lost(exc)

    def _force_close(self, exc: Exception | None) -> None:
        self._finish(exc)
        super()._force_close(exc)

    def _finish(self, exc: Exception | None) -> None:
        for waited in (self.secure, self.inside):
            if not waited.done():
                waited.cancel()
        if not self.over.done():
            self.over.set_result(str(exc or ""))

    # ------------------------------------------------------------------------------ what it may do

    def say(self, kind: int, payload: bytes = b"") -> None:
        """Send a packet, whether or not this is the time for it."""
        if self._transport is None:
            return
        before = self._auth_complete, self._kex_complete
        self._auth_complete = self._kex_complete = True
        try:
            self.send_packet(kind, payload)
        finally:
            self._auth_complete, self._kex_complete = before

    def open_program(self, channel: int, *, window: int = WIDE, packet: int = 32768) -> None:
        """Ask for a channel; the first that is asked for is the gateway's number 0."""
        kind, sizes = text("session"), number(channel) + number(window) + number(packet)
        self.say(CHANNEL_OPEN, kind + sizes)

    def ask(self, channel: int, name: str, payload: bytes = b"", *, reply: bool = True) -> None:
        """Send the request of a channel."""
        self.say(REQUEST, number(channel) + text(name) + bytes([reply]) + payload)

    def ask_all(self, name: str, payload: bytes = b"", *, reply: bool = True) -> None:
        """Send a request that is no channel's."""
        self.say(GLOBAL_REQUEST, text(name) + bytes([reply]) + payload)

    async def sent(self) -> None:
        """Wait until the other side has taken most of what was sent."""
        while self._transport is not None and self._transport.get_write_buffer_size() > 65536:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0)

    async def hears(self, kind: int, count: int = 1, within: float = LONG_WAIT) -> None:
        """Wait until so many packets of a kind have come."""
        async with asyncio.timeout(within):
            while self.counts.get(kind, 0) < count:
                assert not self.over.done(), self.over.result()
                await asyncio.sleep(0.005)

    def deafen(self) -> None:
        """Read nothing any more."""
        transport = cast("asyncio.Transport", self._transport)
        transport.pause_reading()

    def break_off(self) -> None:
        """Be gone, with a reset."""
        transport = self._transport
        if transport is not None:
            found = transport.get_extra_info("socket")
            linger = struct.pack("ii", 1, 0)
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            transport.abort()


@contextlib.asynccontextmanager
async def enemy(
    port: int,
    user: str,
    key: Path | None = None,
    *,
    stops_before_login: bool = False,
    made: type[Enemy] = Enemy,
) -> AsyncIterator[Enemy]:
    """Connect; logged in when there is a key. It is gone at the end of the block."""
    loop = asyncio.get_running_loop()
    options = await SSHClientConnectionOptions.construct(
        config=[],
        known_hosts=None,
        username=user,
        client_keys=[str(key)] if key else [],
        agent_path=None,
        keepalive_interval=0,
        host="127.0.0.1",
        port=port,
    )
    _, protocol = await loop.create_connection(
        lambda: made(loop, options, stops_before_login=stops_before_login), "127.0.0.1", port
    )
    connection = protocol
    try:
        if key is not None:
            async with asyncio.timeout(LONG_WAIT):
                await connection.inside
        yield connection
    finally:
        connection.abort()
        with contextlib.suppress(asyncio.CancelledError, asyncssh.Error):
            await connection.wait_closed()


def own_memory(pid: int) -> int:
    """Return how many bytes a process has that are in no file.

    Of the pages of files its share depends on who else has them.
    """
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    rows = (row.split() for row in rollup.splitlines() if row.startswith("Pss_Anon:"))
    return sum(int(row[1]) for row in rows) * 1024


def open_files(pid: int) -> int:
    """Return how many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@contextlib.contextmanager
def unharmed(
    gateway: GatewayProcess, good: Client, *, grows: int = 32, files: int = 28
) -> Iterator[None]:
    """Hold a gateway, after what happens in the block, to what it was before.

    It lets a good client in, has not grown by more than ``grows`` MiB, keeps no file open for those
    who are gone (24 may be its own, to the API), and its log tells of no accident and has one line
    for each thing it tells.
    """
    assert good.said("echo in") == b"in\n"
    pid = gateway.process.pid
    memory, at_first, logged = own_memory(pid), open_files(pid), len(gateway.told)
    yield
    assert gateway.process.poll() is None, gateway.told[-4000:]
    assert good.said("echo still in") == b"still in\n"
    eventually(
        lambda: open_files(pid) <= at_first + files,
        what=f"the files of those who are gone are closed: {open_files(pid)}, before {at_first}",
        timeout=LONG_WAIT,
    )
    grown = (own_memory(pid) - memory) >> 20
    assert grown <= grows, f"the gateway has grown by {grown} MiB"
    told = gateway.told[logged:]
    for accident in ACCIDENTS:
        at = told.find(accident)
        assert at < 0, told[max(0, at - 500) : at + 3000]
    for line in told.splitlines():
        assert line.startswith("{"), f"not a line of the log: {line[:300]!r}"
        assert line.isprintable(), line[:300]
