"""The TCP sockets of our network namespace, from the kernel's `sock_diag(7)` or its text files.

To ask costs a fraction of a millisecond. The text of `/proc/net/tcp` takes the kernel many, however
few sockets there are, so it is read only where the kernel cannot be asked: gVisor's, say.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Iterable, Iterator, List, NamedTuple, Optional, Tuple

LISTENING = "0A"

_TABLES = ("tcp", "tcp6")
_READ_BYTES = 262144
_SOCK_DIAG = 4
_BY_FAMILY = 20
_DUMP = 0x301
_ERROR, _DONE = 2, 3
_SECONDS = 1.0
_EVERY_STATE = 0xFFFFFFFF
_ONLY_LISTENING = 1 << int(LISTENING, 16)
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBBI48x")
# Family, state, two ports, two addresses; at the end the inode.
_ANSWER = struct.Struct("=BBxx2s2s16s16s28xI")

Key = Tuple[str, str, str]


class Row(NamedTuple):
    """One socket. `key`: its table, and both addresses as the kernel prints them."""

    key: Key
    state: str
    inode: str


def connections() -> Optional[List[Row]]:
    """All but the sockets that listen; None where the kernel cannot be asked."""
    return _asked(_EVERY_STATE & ~_ONLY_LISTENING)


def listening() -> List[Row]:
    """The sockets that listen."""
    asked = _asked(_ONLY_LISTENING)
    if asked is not None:
        return asked
    return [row for row in rows_of(read_tables()) if row.state == LISTENING]


def read_tables() -> List[Tuple[str, bytes]]:
    """The name and the text of each table that can be read."""
    found = []
    for table in _TABLES:
        try:
            fd = os.open(f"/proc/net/{table}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        parts: List[bytes] = []
        try:
            while not parts or parts[-1]:
                parts.append(os.read(fd, _READ_BYTES))
        except OSError:
            continue
        finally:
            os.close(fd)
        found.append((table, b"".join(parts)))
    return found


def rows_of(tables: Iterable[Tuple[str, bytes]]) -> Iterator[Row]:
    """What the texts say."""
    for table, text in tables:
        for line in text.decode("ascii", "replace").splitlines()[1:]:
            fields = line.split()
            if len(fields) >= 10:
                yield Row((table, fields[1], fields[2]), fields[3], fields[9])


def _asked(states: int) -> Optional[List[Row]]:
    try:
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG
        ) as kernel:
            kernel.settimeout(_SECONDS)
            found: List[Row] = []
            for table, family in zip(_TABLES, (socket.AF_INET, socket.AF_INET6)):
                question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, states)
                size = _HEADER.size + len(question)
                kernel.send(_HEADER.pack(size, _BY_FAMILY, _DUMP, 0, 0) + question)
                found += _answers(kernel, table)
            return found
    except OSError:
        return None


def _answers(kernel: socket.socket, table: str) -> Iterator[Row]:
    """Raises OSError when the kernel does not answer such questions."""
    while True:
        said = memoryview(kernel.recv(_READ_BYTES))
        while len(said) >= _HEADER.size:
            size, kind, _, _, _ = _HEADER.unpack_from(said)
            if kind == _DONE:
                return
            if kind == _ERROR or size < _HEADER.size + _ANSWER.size:
                raise OSError("the kernel does not tell of its sockets")
            yield _row(table, said[_HEADER.size : size])
            said = said[(size + 3) & ~3 :]


def _row(table: str, answer: memoryview) -> Row:
    family, state, port, peer_port, address, peer, inode = _ANSWER.unpack_from(answer)
    words = 1 if family == socket.AF_INET else 4
    local = _printed(address, words, port)
    return Row((table, local, _printed(peer, words, peer_port)), f"{state:02X}", str(inode))


def _printed(address: bytes, words: int, port: bytes) -> str:
    """As the files have it: an address as words of the machine, a port as a number."""
    shown = "".join(f"{word:08X}" for word in struct.unpack_from(f"={words}I", address))
    return f"{shown}:{int.from_bytes(port, 'big'):04X}"
