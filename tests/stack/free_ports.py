"""Ports for what tests start, which nobody else gets meanwhile.

A port that the kernel gave to a socket that was closed again is soon given to another: of a test
beside this one, or of any connection. These lie below the range that the kernel gives ports from,
and one that was chosen is locked for as long as the process lives.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
import threading
from pathlib import Path

_LOCKS = Path(tempfile.gettempdir()) / "svc-test-ports"
"""The byte at the place of a port is locked by the process that has chosen it."""

_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _ABOVE = 12_000, 30_000  # clusters give ports from 30000 on to their services
_OF_SERVICES = 20_000
"""From here on private services choose theirs (deploy.services.ports), which know no locks: a port
whose service is down for a while is not to be given away. Used when all others are taken."""

_choosing = threading.Lock()
_chosen: set[int] = set()
_file: list[int] = []  # closed never: that would end all locks of the process


def free_port() -> int:
    """Return a port that nothing listens on, and that no other test is given."""
    above = min(_ABOVE, int(_KERNEL.read_text().split()[0]))
    ports = range(_LOWEST, above if above > _LOWEST + 1000 else _ABOVE)
    first, others = ports[: _OF_SERVICES - _LOWEST], ports[_OF_SERVICES - _LOWEST :]
    with _choosing:
        if not _file:
            _file.append(os.open(_LOCKS, os.O_RDWR | os.O_CREAT, 0o666))
        for port in (*random.sample(first, len(first)), *random.sample(others, len(others))):
            if port not in _chosen and _locked(port):
                _chosen.add(port)
                if _is_free(port):
                    return port
    raise RuntimeError("every port is taken")


def free_ports(count: int) -> list[int]:
    """Return as many free ports, all different."""
    return [free_port() for _ in range(count)]


def _locked(port: int) -> bool:
    try:
        fcntl.lockf(_file[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    """Whether a server that binds every address could have it, as one with a single address can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
