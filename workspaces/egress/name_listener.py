"""Questions for names of all networks, as datagrams at one port and inside of connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator

from workspaces.egress import name_server
from workspaces.egress.decisions import Decision
from workspaces.egress.host_policy import DNS_PORT, Verdict
from workspaces.egress.open_networks import Network, Whose
from workspaces.egress.refusal import shown

MAX_QUESTIONS = 100
"""Of one connection."""
_IP_PKTINFO = 8  # of linux/in.h; the module of Python does not name it
_PKTINFO = struct.Struct("@I4s4s")


class NameListener:
    """Answers questions of networks; ``decided`` is told of what is refused."""

    def __init__(self, whose: Whose, decided: Callable[[Decision], None]) -> None:
        self._whose = whose
        self._decided = decided
        self._tasks: set[asyncio.Future[None]] = set()

    @contextlib.contextmanager
    def listening(self, host: str, port: int) -> Iterator[None]:
        """Answer datagrams; raises ``OSError``."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            # The answer has to come from the address that was asked.
            udp.setsockopt(socket.SOL_IP, _IP_PKTINFO, 1)
            udp.setblocking(False)
            udp.bind((host, port))
            loop.add_reader(udp.fileno(), self._datagrams, udp)
            try:
                yield
            finally:
                loop.remove_reader(udp.fileno())

    async def serve(
        self, network: Network, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the questions of a connection."""
        for _ in range(MAX_QUESTIONS):
            size = int.from_bytes(await reader.readexactly(2), "big")
            reply = self._reply(network, await reader.readexactly(size))
            if reply is None:
                return
            writer.write(len(reply).to_bytes(2, "big") + reply)
            await writer.drain()

    def _datagrams(self, udp: socket.socket) -> None:
        for _ in range(64):
            try:
                query, ancillary, _, sender = udp.recvmsg(
                    name_server.MAX_QUERY_BYTES + 1, socket.CMSG_SPACE(_PKTINFO.size)
                )
            except OSError:
                return
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_IP, _IP_PKTINFO):
                    answer = self._answer(udp, query, sender, content[: _PKTINFO.size])
                    task = asyncio.ensure_future(answer)
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, udp: socket.socket, query: bytes, sender: tuple[str, int], info: bytes
    ) -> None:
        _, local, _ = _PKTINFO.unpack(info)
        network = await self._whose(socket.inet_ntoa(local))
        if network is None:
            return
        reply = self._reply(network, query)
        if reply:
            told = _PKTINFO.pack(0, local, b"\0" * 4)
            with contextlib.suppress(OSError):
                udp.sendmsg([reply], [(socket.SOL_IP, _IP_PKTINFO, told)], 0, sender)

    def _reply(self, network: Network, query: bytes) -> bytes | None:
        def refused(host: str, verdict: Verdict) -> None:
            self._decided(
                Decision(
                    network.attempt_id,
                    allowed=False,
                    protocol="dns",
                    host=shown(host),
                    address="",
                    port=DNS_PORT,
                    rule=verdict.rule,
                    reason=verdict.reason,
                    connections=1,
                    another_rule=verdict.another_rule,
                )
            )

        if network.is_stopped:
            return None
        if not network.queries.take():
            reason = f"More than {name_server.PER_SECOND:g} names a second were asked for."
            refused("", Verdict(False, "queries", reason))
            return None
        return name_server.answer(query, network.policy, network.names, refused)
