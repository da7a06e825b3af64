"""Which peers a run has TCP connections with, from polling the sockets of its network namespace.

Connections over the loopback and listening sockets are not recorded; nor is one that began and
ended between two polls and left nothing behind.
"""

from __future__ import annotations

import _thread
import os
import socket
import struct
import sys
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from ..process.aside import aside
from ..record.frames import Confidence, Kind, Method
from ..record.recording import Recording
from .socket_tables import LISTENING, Key, Row, connections, listening, read_tables, rows_of

POLL_SECONDS = 1.0
_IDLE_SECONDS = 5.0
MOST_OPEN = 4096
_SHARE = 0.02
_LOOK_SECONDS = 0.03
_COUNTS = ("sockstat", "sockstat6")
# How long an idle run's tables are left alone while the kernel counts as many sockets as before.
_TRUST_SECONDS = 30.0
_MOST_DESCRIPTORS = 4096
_OVER = ("06", "07")
_LOCAL = (b"\x7f", b"\0")
_MAPPED = b"\0" * 10 + b"\xff\xff"


class Open(NamedTuple):
    """A connection that was seen. `process`: 0 when it is not known."""

    first_us: int
    process: int


class Network:
    """The connections of one run; what was there before it is not its own."""

    def __init__(
        self,
        recording: Recording,
        members: Callable[[], List[int]],
        number_of: Callable[[int], int],
        candidates: Callable[[], List[str]],
    ) -> None:
        self.full = False
        self.due: Optional[float] = None
        self._recording = recording
        self._members = members
        self._number_of = number_of
        self._candidates = candidates
        self._seconds = POLL_SECONDS
        self._tables = _Tables()
        self._is_reading = False
        self._counts: Optional[bytes] = None
        self._read_at = 0.0
        self._foreign: Set[Key] = set()
        self._open: Dict[Key, Open] = {}

    @staticmethod
    def unavailable() -> Optional[str]:
        """Why connections cannot be seen, if they cannot."""
        try:
            os.close(os.open("/proc/net/tcp", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return f"/proc/net/tcp cannot be read: {error.strerror}"
        return None

    def begin(self) -> None:
        """Begin to look at what is open now; there is time for something else meanwhile."""
        if not _is_empty(_socket_counts()):
            self._is_reading = True
            self._tables.begin()

    def prepare(self) -> None:
        """What was open at `begin`, before the leader, belongs to others."""
        if self._is_reading:
            self._is_reading = False
            self._foreign = {row.key for row in self._tables.wait()}
        self.due = time.monotonic()

    def tick(self) -> None:
        """Poll when it is time: read the tables beside the loop, and look at them later."""
        now = time.monotonic()
        if self.due is None or now < self.due:
            return
        if not self._is_reading:
            counts = _socket_counts()
            if _is_empty(counts):
                self._poll([])
                self.due = now + self._seconds
                return
            if self._is_unchanged(counts, now):
                self.due = now + self._seconds
                return
            self._counts, self._read_at = counts, now
            self._is_reading = True
            self._tables.begin()
        if self._tables.running:
            self.due = now + _LOOK_SECONDS
            return
        self._is_reading = False
        self._poll(self._tables.wait())
        self.due = now + max(self._seconds, self._tables.seconds / _SHARE)

    def _is_unchanged(self, counts: Optional[bytes], now: float) -> bool:
        """Whether an idle run is taken to have the connections that it had."""
        is_idle = self._seconds == _IDLE_SECONDS
        trusted = now - self._read_at < _TRUST_SECONDS
        return is_idle and trusted and counts is not None and counts == self._counts

    def pace(self, idle: bool) -> None:
        """Poll less often while nothing happens, and soon when something does."""
        seconds = _IDLE_SECONDS if idle else POLL_SECONDS
        if seconds < self._seconds and self.due is not None:
            self.due = min(self.due, time.monotonic() + seconds)
        self._seconds = seconds

    def finish(self) -> None:
        """Poll a last time; what is still open is only recorded as such."""
        if self.due is not None:
            self._tables.wait()
            if _is_empty(_socket_counts()):
                self._poll([])
            else:
                self._tables.begin()
                self._poll(self._tables.wait())
        self.due = None

    def _poll(self, found: List[Row]) -> None:
        rows = {row.key: row for row in found}
        self._foreign &= rows.keys()
        new = [row for key, row in rows.items() if key not in self._foreign]
        new = [row for row in new if row.key not in self._open]
        owners = self._owners({row.inode for row in new if row.inode != "0"}) if new else {}
        for row in new:
            if len(self._open) >= MOST_OPEN:
                self.full = True
                break
            seen = Open(time.time_ns() // 1000, owners.get(row.inode, 0))
            self._open[row.key] = seen
            self._record(row.key, seen, "open")
        for key in list(self._open):
            if key not in rows or rows[key].state in _OVER:
                self._record(key, self._open.pop(key), "closed")
                if key in rows:
                    self._foreign.add(key)

    def _record(self, key: Key, seen: Open, state: str) -> None:
        protocol, local, remote = key
        meta: Dict[str, Any] = {
            "protocol": protocol,
            "peer": _text(_address(remote)),
            "port": _port(remote),
            "localPort": _port(local),
            "state": state,
            "firstSeenUs": seen.first_us,
            "lastSeenUs": time.time_ns() // 1000,
        }
        confidence = Confidence.INFERRED
        if seen.process:
            meta["process"] = seen.process
        else:
            # Any process of the namespace may have opened it, not only those of runs.
            confidence = Confidence.UNKNOWN
            meta["candidates"] = self._candidates()
        self._recording.event(
            Kind.NETWORK_SOURCE_OBSERVED,
            meta,
            process=seen.process,
            method=Method.POLL,
            confidence=confidence,
        )

    def _owners(self, inodes: Set[str]) -> Dict[str, int]:
        """The numbers of the run's processes that hold these sockets."""
        found: Dict[str, int] = {}
        for place, target in _descriptors(self._members()):
            inode = target[len("socket:[") : -1]
            if target.startswith("socket:[") and inode in inodes and inode not in found:
                number = self._number_of(place)
                if number:
                    found[inode] = number
            if len(found) == len(inodes):
                break
        return found


def _descriptors(pids: Iterable[int]) -> Iterator[Tuple[int, str]]:
    left = _MOST_DESCRIPTORS
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names[:left]:
            try:
                yield pid, os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
        left -= len(names)
        if left <= 0:
            return


class _Tables:
    """Reads what is open now: beside the loop where the kernel takes long for it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long that took the last time."""
        self._can_ask = True
        self._under_way = _thread.allocate_lock()
        self._read: List[Row] = []

    @property
    def running(self) -> bool:
        """Whether it is being read."""
        return self._under_way.locked()

    def begin(self) -> None:
        """Begin to read; nobody may be doing so."""
        began = time.monotonic()
        if self._can_ask:
            found = connections()
            if found is not None:
                self._read = _of_others(found)
                self.seconds = time.monotonic() - began
                return
            self._can_ask = False
        self._under_way.acquire()
        aside(self._read_all)

    def wait(self) -> List[Row]:
        """What was read, once it is read."""
        with self._under_way:
            return self._read

    def _read_all(self) -> None:
        began = time.monotonic()
        try:
            self._read = _of_others(rows_of(read_tables()))
            self.seconds = time.monotonic() - began
        finally:
            self._under_way.release()


def _socket_counts() -> Optional[bytes]:
    """How many TCP sockets the namespace has, as the kernel prints it; reading the tables costs a
    hundred times as much."""
    found = []
    for name in _COUNTS:
        try:
            fd = os.open(f"/proc/net/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            text = os.read(fd, 4096)
        except OSError:
            return None
        finally:
            os.close(fd)
        # Without "mem" and "alloc", which are those of the whole machine.
        found += [b" ".join(line.split()[:7]) for line in text.splitlines() if b"TCP" in line]
    return b"\n".join(found)


def _is_empty(counts: Optional[bytes]) -> bool:
    """Whether the namespace has no TCP socket at all, so that its tables are not worth reading."""
    lines = (counts or b"").splitlines()
    return bool(lines) and all(not int(count) for line in lines for count in line.split()[2::2])


def _of_others(rows: Iterable[Row]) -> List[Row]:
    """Those with a peer that is elsewhere."""
    return [row for row in rows if row.state != LISTENING and not _is_local(row.key[2])]


def listening_sockets() -> List[Tuple[int, str, str]]:
    """Port, address and inode of every TCP socket that listens, in this order."""
    found = ((row.key[1], row.inode) for row in listening())
    return sorted({(_port(local), _text(_address(local)), inode) for local, inode in found})


def _address(shown: str) -> bytes:
    """The address in network order: the kernel prints words of the machine."""
    raw = bytes.fromhex(shown.partition(":")[0])
    if sys.byteorder == "little":
        raw = struct.pack(f"<{len(raw) // 4}I", *struct.unpack(f">{len(raw) // 4}I", raw))
    return raw[12:] if raw.startswith(_MAPPED) else raw


def _port(shown: str) -> int:
    return int(shown.partition(":")[2], 16)


def _is_local(shown: str) -> bool:
    raw = _address(shown)
    if len(raw) == 16:
        return raw[:15] == b"\0" * 15
    return raw[:1] in _LOCAL


def _text(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
