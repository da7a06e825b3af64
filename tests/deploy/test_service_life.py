"""A process of ours that is killed is back in seconds, and a set-up takes nothing of ours for
another program's."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from deploy.services.ports import is_free
from deploy.services.process import ProcessRecord, wait_until
from deploy.up.layout import Layout
from deploy.up.own_processes import PROCESSES, OwnProcesses
from tests.deploy.installation import CHECKOUT, free_ports

pytestmark = pytest.mark.slow

BACK_SECONDS = 15.0
"""On an idle machine it takes three; a busy one needs longer to load the code. The half-sent
request alone would be waited for twice as long."""


@contextmanager
def half_sent_request(port: int) -> Iterator[None]:
    """A client that has begun a request and does not finish it."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        time.sleep(0.5)  # it has to be read by the server, not only by the kernel
        yield


def answers(port: int) -> bool:
    """Whether the API answers within a second."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=1)) as connection:
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False


@pytest.fixture
def api(tmp_path: Path) -> Iterator[int]:
    """The API of this checkout under supervisord; yields its port."""
    data = tmp_path / "data"
    layout = Layout(CHECKOUT, data, data / "services")
    layout.create()
    (port,) = free_ports(1)
    environ = {
        **os.environ,
        "SVC_API_PORT": str(port),
        "SVC_WEB_PORT": "0",
        "SVC_API_WORKERS": "2",
    }
    processes = OwnProcesses(layout, tuple(each for each in PROCESSES if each.name == "api"))
    processes.start(environ)
    try:
        assert wait_until(lambda: answers(port), 60, every=0.1), "the API does not answer"
        # Only what stays up as long as supervisord asks for is started again at once.
        assert wait_until(lambda: processes.states() == {"api": "RUNNING"}, 30, every=0.2)
        yield port
    finally:
        processes.stop()


def master_of(port: int) -> ProcessRecord:
    """The process that listened first: of those with this port in their environment, gunicorn's
    parent."""
    wanted = f"SVC_API_PORT={port}".encode()
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0") and (
                b"gunicorn" in (entry / "cmdline").read_bytes()
            ):
                text = (entry / "stat").read_text()
                found[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    (master,) = [pid for pid, parent in found.items() if parent not in found]
    record = ProcessRecord.of(master)
    assert record is not None
    return record


def test_an_api_whose_master_was_killed_is_back_although_a_request_is_half_sent(api: int) -> None:
    with half_sent_request(api):
        master = master_of(api)
        master.signal(signal.SIGKILL)
        killed = time.monotonic()
        assert master.wait_gone(10)
        assert wait_until(lambda: is_free(api), 1), "orphans keep the port"
        assert wait_until(lambda: answers(api), 60, every=0.05), "it never came back"
        took = time.monotonic() - killed
    assert took < BACK_SECONDS, f"it was away for {took:.1f} s"
