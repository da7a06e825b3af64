"""Free TCP ports on the loopback interface, chosen once and kept."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path

from deploy.services.errors import SetupError

# Below the range from which Linux takes the ports of outgoing connections, so that a port stays
# free while its service is down.
_RANGE = range(20000, 32000)


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """True when a server could listen on the port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def is_open(port: int, host: str = "127.0.0.1", timeout: float = 1.0) -> bool:
    """True when something accepts connections on the port."""
    try:
        socket.create_connection((host, port), timeout=timeout).close()
    except OSError:
        return False
    return True


class PortBook:
    """The ports of one service by name, remembered in a file next to its data."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, name: str) -> int | None:
        """The remembered port, or None when none was chosen yet."""
        return self._read().get(name)

    def choose(self, name: str, wanted: int | None = None) -> int:
        """The remembered port; `wanted`, or otherwise a free one, when there is none yet."""
        ports = self._read()
        if wanted is not None:
            ports[name] = wanted
        elif name not in ports:
            ports[name] = self._free(set(ports.values()))
        self._write(ports)
        return ports[name]

    def replace(self, name: str) -> int:
        """Forget the remembered port, which somebody else has taken, and choose another one."""
        ports = self._read()
        ports[name] = self._free(set(ports.values()))
        self._write(ports)
        return ports[name]

    def _read(self) -> dict[str, int]:
        try:
            return {name: int(port) for name, port in json.loads(self._path.read_text()).items()}
        except (OSError, ValueError):
            return {}

    def _write(self, ports: dict[str, int]) -> None:
        if ports != self._read():
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(ports, indent=2) + "\n")
            partial.replace(self._path)

    @staticmethod
    def _free(taken: set[int]) -> int:
        for port in random.SystemRandom().sample(_RANGE, k=200):
            if port not in taken and is_free(port):
                return port
        raise SetupError(f"No free port between {_RANGE.start} and {_RANGE.stop} on 127.0.0.1.")
