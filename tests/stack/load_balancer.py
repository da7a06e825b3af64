"""A plain load balancer, haproxy: it passes connections on, to whoever answers its questions."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.services.private import find_program
from tests.stack.free_ports import free_port
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

_CONFIGURATION = """
global
    maxconn 500
defaults
    mode tcp
    timeout connect 5s
    timeout client 5m
    timeout server 5m
    timeout check 5m
    option redispatch
    retries 3
    default-server check inter 500ms fall 2 rise 1
listen all
    bind 127.0.0.1:{port}
    balance roundrobin
{check}
{servers}
"""
API = """
    option httpchk GET /healthz
    http-check send hdr Host localhost
"""
SSH = """
    option tcp-check
    tcp-check expect string SSH-2.0
"""


@contextlib.contextmanager
def load_balancer(folder: Path, check: str, servers: Sequence[int]) -> Iterator[int]:
    """Run haproxy before the processes at these ports; yields the port that clients know.

    ``check`` is how it asks them whether they live.
    """
    program = find_program("haproxy")
    assert program is not None
    port = free_port()
    lines = "\n".join(f"    server s{each} 127.0.0.1:{each}" for each in servers)
    configuration = folder / f"haproxy-{port}.cfg"
    configuration.write_text(_CONFIGURATION.format(port=port, check=check, servers=lines))
    with (folder / f"haproxy-{port}.log").open("wb") as log:
        running = subprocess.Popen(
            [str(program), "-f", str(configuration), "-db"], stdout=log, stderr=log
        )
    try:
        eventually(lambda: _listens(port), what="haproxy listens")
        yield port
    finally:
        running.terminate()
        running.wait(LONG_WAIT)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), LONG_WAIT):
        return True
    return False
