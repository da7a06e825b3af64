"""A process of ours that is killed comes back, and a set-up takes nothing of ours for another
program's."""

from __future__ import annotations

import http.client
import io
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from deploy.services.errors import SetupError
from deploy.services.ports import is_free
from deploy.services.process import ProcessRecord, wait_until
from deploy.up.layout import Layout
from deploy.up.own_processes import PROCESSES, OwnProcesses, Process
from deploy.up.progress import Progress
from deploy.up.setup import down, make_way
from tests.deploy.conftest import make_venv
from tests.deploy.installation import CHECKOUT, listening
from tests.stack.free_ports import free_ports
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.slow

LISTENING = """
import os, socket, time
server = socket.create_server(("127.0.0.1", int(os.environ["SVC_API_PORT"])))
time.sleep(600)
"""

FOREVER = round(4 * LONG_WAIT)
"""Seconds for which a process that still serves somebody may go on, in the tests of such ones."""


@contextmanager
def half_sent_request(port: int) -> Iterator[socket.socket]:
    """A client that has begun a request, which the server has read, and does not finish it."""
    with socket.create_connection(("127.0.0.1", port), timeout=LONG_WAIT) as client:
        # Once it was answered here, the server reads what comes after it.
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        client.sendall(head + b"{")
        assert wait_until(lambda: not on_the_way(port, client), LONG_WAIT, every=0.05)
        yield client


def on_the_way(port: int, client: socket.socket) -> bool:
    """Whether the kernel holds bytes of this client that the server on the port has not read."""
    here, there = f"0100007F:{port:04X}", f"0100007F:{client.getsockname()[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # Of each side how many bytes are to be sent and, behind the colon, to be read.
    unsent = [int(row[4].partition(":")[0], 16) for row in rows if row[1:3] == [there, here]]
    unread = [int(row[4].partition(":")[2], 16) for row in rows if row[1:3] == [here, there]]
    return any(unsent) or any(unread)


def answers(port: int) -> bool:
    """Whether the API answers."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
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
        # So long would a process go on that is left alone with a request that is half sent.
        "GUNICORN_CMD_ARGS": f"--graceful-timeout={FOREVER}",
        "SVC_API_BODY_TIMEOUT_MS": str(FOREVER * 1000),
    }
    processes = OwnProcesses(layout, tuple(each for each in PROCESSES if each.name == "api"))
    processes.start(environ)
    try:
        assert wait_until(lambda: answers(port), LONG_WAIT, every=0.1), "the API does not answer"
        # Only what stays up as long as supervisord asks for is started again at once.
        assert wait_until(lambda: processes.states() == {"api": "RUNNING"}, LONG_WAIT, every=0.2)
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
    with half_sent_request(api) as client:
        master = master_of(api)
        master.signal(signal.SIGKILL)
        assert master.wait_gone(LONG_WAIT)
        # The process that has read half of it ends, and does not keep the port for it.
        with suppress(ConnectionResetError):
            while client.recv(1 << 16):
                pass
        assert wait_until(lambda: answers(api), LONG_WAIT, every=0.05), "it never came back"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port; none is asked for."""
    for setting in (
        *("SVC_API_PORT", "SVC_SSH_PORT", "SVC_PREVIEW_PORT", "SVC_WEB_PORT"),
        "SVC_EGRESS_PORT",
    ):
        monkeypatch.delenv(setting, raising=False)
    return free_ports(1)[0]


@pytest.fixture
def processes(layout: Layout) -> Iterator[OwnProcesses]:
    """Under supervisord, a process that listens where the API would."""
    (layout.checkout / "listening.py").write_text(LISTENING)
    make_venv(layout)
    own = OwnProcesses(layout, (Process("api", "{bin}/python listening.py", 10),))
    yield own
    own.stop()


def environ_with(port: int) -> dict[str, str]:
    """The settings of a process; the other ports are nobody's."""
    ssh, preview = free_ports(2)
    path = os.environ["PATH"]
    return {
        "PATH": path,
        "SVC_API_PORT": str(port),
        "SVC_SSH_PORT": str(ssh),
        "SVC_PREVIEW_PORT": str(preview),
        "SVC_WEB_PORT": "0",
        "SVC_EGRESS_PORT": "0",
    }


def start(processes: OwnProcesses, environ: dict[str, str]) -> None:
    """Start them and wait until the port is taken."""
    processes.start(environ)
    assert wait_until(lambda: not is_free(int(environ["SVC_API_PORT"])), LONG_WAIT)


def kill_supervisor(layout: Layout) -> None:
    """Leave its processes without a parent."""
    supervisor = ProcessRecord.load(layout.data / "supervisord.json")
    assert supervisor is not None
    supervisor.signal(signal.SIGKILL)
    assert supervisor.wait_gone(LONG_WAIT)


def test_orphans_of_ours_are_ended_by_a_stop_too(
    layout: Layout, processes: OwnProcesses, port: int
) -> None:
    start(processes, environ_with(port))
    kill_supervisor(layout)
    assert not is_free(port)
    down(layout, Progress(io.StringIO()))
    assert wait_until(lambda: is_free(port), LONG_WAIT)


def test_the_ports_of_orphans_of_ours_are_kept(
    layout: Layout, processes: OwnProcesses, port: int
) -> None:
    environ = environ_with(port)
    start(processes, environ)
    kill_supervisor(layout)
    assert not is_free(port)

    said = io.StringIO()
    settled = make_way(layout, processes, environ, Progress(said))
    assert settled == environ
    assert "taken by another program" not in said.getvalue()
    assert is_free(port)


def test_orphans_of_ours_do_not_stand_in_the_way_of_a_port_that_was_asked_for(
    layout: Layout, processes: OwnProcesses, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SVC_API_PORT", str(port))
    environ = environ_with(port)
    start(processes, environ)
    kill_supervisor(layout)
    assert make_way(layout, processes, environ, Progress(io.StringIO())) == environ


def test_a_taken_port_is_told_before_anything_is_stopped(
    layout: Layout, processes: OwnProcesses, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = environ_with(port)
    start(processes, environ)
    with listening() as other:
        taken = str(other.getsockname()[1])
        monkeypatch.setenv("SVC_API_PORT", taken)
        changed = {**environ, "SVC_API_PORT": taken}
        with pytest.raises(SetupError, match=f"SVC_API_PORT says {taken}, but something else"):
            make_way(layout, processes, changed, Progress(io.StringIO()))
        assert processes.running
        assert not is_free(port)


def test_a_port_that_was_asked_for_may_be_the_one_of_another_process_of_ours(
    layout: Layout, processes: OwnProcesses, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = environ_with(port)
    start(processes, environ)
    swapped = {**environ, "SVC_API_PORT": environ["SVC_SSH_PORT"], "SVC_SSH_PORT": str(port)}
    for setting in ("SVC_API_PORT", "SVC_SSH_PORT"):
        monkeypatch.setenv(setting, swapped[setting])
    assert make_way(layout, processes, swapped, Progress(io.StringIO())) == swapped
    assert not processes.running
