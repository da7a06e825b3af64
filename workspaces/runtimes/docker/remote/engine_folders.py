"""Engines of other machines, as a folder each: its address, and the certificates for it.

Processes with a database write the folders (``workspaces.engines.certificates``); the gateways,
which have none, read them.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.remote.tls_tunnel import (
    CA_FILE,
    CERTIFICATE_FILE,
    EngineAddress,
    TlsTunnel,
)

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_lock = threading.Lock()
_tunnels: dict[tuple[int, str, bytes, bytes], TlsTunnel] = {}
"""By process, address and certificates: a process that was forked has no thread of its parent's.

One whose certificates were replaced stays for the connections that go over it.
"""


def docker_host_of(folder: Path) -> str:
    """Return the ``DOCKER_HOST`` of an engine; with certificates it leads through a tunnel.

    Raises ``adapter-unavailable``.
    """
    try:
        url = (folder / "address").read_text("ascii").strip()
        # The CA first: it is written last.
        ca, shown = (
            (folder / name).read_bytes() if (folder / name).exists() else b""
            for name in (CA_FILE, CERTIFICATE_FILE)
        )
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(
            "adapter-unavailable", "This process does not know the workspace's engine."
        ) from error
    if not ca:
        return url
    key = (os.getpid(), url, ca, shown)
    with _lock:
        if key not in _tunnels:
            _tunnels[key] = TlsTunnel(EngineAddress.of(url, folder))
        return _tunnels[key].docker_host


def place_of(endpoint: str, docker_host: str, engines: Path) -> tuple[str, str]:
    """Return the ``DOCKER_HOST`` and the container of ``docker-exec://[<engine>/]<container>``.

    ``docker_host`` is that of the first engine, which has no name in an endpoint. Raises
    ``adapter-unavailable``.
    """
    scheme, _, rest = endpoint.partition("://")
    if scheme != "docker-exec":
        raise LaunchError("adapter-unavailable", "The workspace cannot be reached where it runs.")
    name, slash, container_id = rest.rpartition("/")
    if not slash:
        return docker_host, container_id
    if not _NAME.fullmatch(name):
        raise LaunchError("adapter-unavailable", "The workspace cannot be reached where it runs.")
    return docker_host_of(engines / name), container_id
