"""Channels that lead to a TCP server of the workspace.

The connection is made without ever waiting in the loop; a name that is not the loopback's is looked
up by a child process. Each direction ends by itself. The bytes are not recorded, but that there was
a connection is, where it went, and how much went over it.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from typing import Any, Dict, List, Optional, Protocol, Tuple

from ..process.byte_queue import ByteQueue
from ..process.gateway_client import Watch
from ..record.frames import Kind, Method
from ..record.resting import MOST_DESCRIPTORS
from .channel import MAX_DATA, ToClient
from .channel_set import Channel, Link
from .session_requests import CONNECT_FAILED

_CONNECT_SECONDS = 10.0
_LOOPBACK = ("localhost", "localhost.localdomain", "ip6-localhost")
_MOST_ADDRESSES = 8
_MOST_ANSWER_BYTES = 4096
NOT_RECORDED = "the workspace's record cannot take more at the moment"

Address = Tuple[int, str]
"""The family of an address, and the address."""


class ForwardRecord(Protocol):
    """Where it is recorded that there was a connection."""

    def mask_text(self, text: str) -> str:
        """The text without what is secret."""

    def event(self, kind: int, meta: Dict[str, Any], *, method: int) -> bool:
        """Append an event; False when there is no room for it."""


class Forward(Channel):
    """Bridges a channel and one TCP connection; begins to connect when it is made."""

    def __init__(
        self, link: Link, number: int, recording: ForwardRecord, host: str, port: int
    ) -> None:
        super().__init__(link, number)
        self.host = host
        self.port = port
        self.deadline: Optional[float] = time.monotonic() + _CONNECT_SECONDS
        """When it is too late to be connected (monotonic seconds)."""
        self._recording = recording
        self._socket: Optional[socket.socket] = None
        self._lookup: Optional[_Lookup] = None
        self._connected = False
        self._over = False
        self._addresses: List[Address] = []
        self._failure = ""
        self._queue = ByteQueue()
        self._input_ended = False
        self._output_ended = False
        self._sent = 0
        self._received = 0
        known = self._known_addresses()
        if known:
            self._connect(known)
        else:
            self._look_up()

    @property
    def is_over(self) -> bool:
        """Whether it could not even begin, or has ended."""
        return self._over

    def watches(self, read: bool) -> List[Watch]:
        """What to wait for now. `read`: whether the client takes more."""
        if self._lookup is not None:
            return [(self._lookup.fd, select.POLLIN, self._take_addresses)]
        if self._socket is None:
            return []
        events = 0
        if not self._connected or self._queue.size:
            events |= select.POLLOUT
        if self._connected and read and not self._output_ended and self.room:
            events |= select.POLLIN
        # Without anything to do a connection that is gone would wake the loop again and again.
        return [(self._socket.fileno(), events, self._handle)] if events else []

    def expire(self, now: float) -> None:
        """Give up connecting when it is too late."""
        if self.deadline is not None and now >= self.deadline:
            self._refuse(f"no answer within {_CONNECT_SECONDS:g} seconds")

    def give(self, data: bytes) -> None:
        if self._over or self._input_ended:
            return
        self._queue.append(data)
        if self._connected:
            self._write()

    def end_input(self) -> None:
        if not self._over and not self._input_ended:
            self._input_ended = True
            self._half_close()

    def close(self) -> None:
        self.end("client")

    def leave(self) -> None:
        self.end("client")

    def end(self, reason: str) -> None:
        """Close the connection, whatever is under way."""
        if self._over:
            return
        connected = self._connected
        self._let_go()
        if connected:
            meta = {
                "sentBytes": self._sent,
                "receivedBytes": self._received,
                "reason": reason,
            }
            self._record(Kind.FORWARD_CLOSED, meta)
        self.tell(ToClient.EXIT, {"code": 0, "signal": None, "reason": reason})
        self._link.forget(self.number)

    # Connecting.

    def _known_addresses(self) -> List[Address]:
        """Where to connect to; nothing when the name has to be looked up."""
        return _numeric(self.host)

    def _look_up(self) -> None:
        try:
            self._lookup = _Lookup(self.host)
        except OSError as error:
            self._refuse(f"its address cannot be looked up: {error.strerror}")

    def _refusal(self, why: str) -> Dict[str, Any]:
        """What the client is told when there is no connection."""
        message = f"cannot connect to {self.host[:255]}:{self.port}: {why}"
        return {"code": CONNECT_FAILED, "message": message}

    def _take_addresses(self, events: int) -> None:
        lookup = self._lookup
        if lookup is None or not lookup.read():
            return
        self._lookup = None
        self._connect(lookup.addresses)
        lookup.close()

    def _connect(self, addresses: List[Address]) -> None:
        self._addresses = addresses
        while self._addresses:
            family, address = self._addresses.pop(0)
            try:
                made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            except OSError as error:
                self._failed(str(error.strerror))
                continue
            made.setblocking(False)
            code = made.connect_ex((address, self.port))
            if code in (0, errno.EINPROGRESS):
                self._socket = made
                return
            self._failed(os.strerror(code))
            made.close()
        self._refuse(self._failure or "there is no such address")

    def _failed(self, why: str) -> None:
        # The first address is the likeliest: what is said of it tells most.
        self._failure = self._failure or why

    def _is_connected(self) -> None:
        assert self._socket is not None
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._failed(os.strerror(code))
            self._socket.close()
            self._socket = None
            self._connect(self._addresses)
            return
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._record(Kind.FORWARD_OPENED, {}):
            self._refuse(NOT_RECORDED)
            return
        self._connected = True
        self.deadline = None
        self.tell(ToClient.OPENED, {})
        self._write()

    def _refuse(self, why: str) -> None:
        if self._over:
            return
        self._let_go()
        self.tell(ToClient.REFUSED, self._refusal(why))
        self._link.forget(self.number)

    # Connected.

    def _handle(self, events: int) -> None:
        if self._over or self._socket is None:
            return
        if not self._connected:
            self._is_connected()
            return
        if events & select.POLLOUT:
            self._write()
        if events & ~select.POLLOUT and not self.is_over and not self._output_ended and self.room:
            self._read()

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(min(MAX_DATA, self.room))
        except BlockingIOError:
            return
        except OSError:
            self.end("reset")
            return
        if data:
            self._received += len(data)
            self.send(ToClient.STDOUT, data)
            return
        self._output_ended = True
        self.say(ToClient.EOF)
        self._end_if_both_have()

    def _write(self) -> None:
        assert self._socket is not None
        while self._queue.size:
            piece = self._queue.first()
            try:
                written = self._socket.send(piece)
            except BlockingIOError:
                return
            except OSError:
                self.end("reset")
                return
            self._sent += written
            self._queue.drop(written)
            self.consumed(written)
        self._half_close()

    def _half_close(self) -> None:
        if self._socket is None or not self._connected:
            return
        if not self._input_ended or self._queue.size:
            return
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.end("reset")
            return
        self._end_if_both_have()

    def _end_if_both_have(self) -> None:
        if self._output_ended and self._input_ended and not self._queue.size:
            self.end("ended")

    def _let_go(self) -> None:
        self._over = True
        self.deadline = None
        self._queue.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None

    def _place(self) -> Dict[str, Any]:
        """Where it leads, as the record has it."""
        return {
            "channel": self.number,
            "host": self._recording.mask_text(self.host),
            "port": self.port,
        }

    def _record(self, kind: int, meta: Dict[str, Any]) -> bool:
        return self._recording.event(kind, {**self._place(), **meta}, method=Method.PROXY)


class _Lookup:
    """A name's addresses, from a child process: a lookup may wait for seconds."""

    def __init__(self, host: str) -> None:
        """Raises OSError when there is no room for a pipe or a process."""
        self.fd, answer = os.pipe()
        os.set_blocking(self.fd, False)
        self._answer = b""
        try:
            pid = os.fork()
        except OSError:
            os.close(self.fd)
            os.close(answer)
            raise
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                # Whoever reads a pipe sees its end only when nobody else has it open.
                os.closerange(0, answer)
                os.closerange(answer + 1, MOST_DESCRIPTORS)
                # Nobody waits for longer; until then it is not looked after.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(int(_CONNECT_SECONDS))
                os.write(answer, _looked_up(host).encode()[:_MOST_ANSWER_BYTES])
            finally:
                os._exit(0)
        os.close(answer)

    @property
    def addresses(self) -> List[Address]:
        """What was found."""
        lines = self._answer.decode("ascii", "replace").split()
        return [found for line in lines for found in _numeric(line)]

    def read(self) -> bool:
        """Whether the answer is there."""
        try:
            part = os.read(self.fd, _MOST_ANSWER_BYTES)
        except BlockingIOError:
            return False
        self._answer += part
        return not part

    def close(self) -> None:
        """Want it no longer. The reaper waits for the child."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _looked_up(host: str) -> str:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return "\n".join([str(entry[4][0]) for entry in found][:_MOST_ADDRESSES])


def _numeric(host: str) -> List[Address]:
    """The addresses that can be told without a lookup."""
    if host.lower().rstrip(".") in _LOOPBACK:
        return [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, host)]
    return []
