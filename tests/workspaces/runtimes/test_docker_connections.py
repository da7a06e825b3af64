"""Connections to the engine: kept from call to call, and never a reason for a call to fail."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import DOCKER_HOST, Launcher
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker import DockerAdapter
from workspaces.runtimes.docker.engine_api import EngineConnections

pytestmark = pytest.mark.docker

REQUEST = re.compile(rb"[A-Z]+ /\S+")


class Relay:
    """Passes connections on to the engine, keeps what was asked, and can cut them all."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix://{path}"
        self.asked: list[bytes] = []
        self._open: list[socket.socket] = []
        self._passing: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Close every connection, as an engine that is restarted does."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def take_requests(self) -> list[str]:
        """Return method and target of what was asked since the last time."""
        taken, self.asked = self.asked, []
        heads = (data.partition(b" HTTP/1.1\r\n")[0] for data in taken)
        return [head.decode() for head in heads if REQUEST.fullmatch(head)]

    def close(self) -> None:
        """Take no more connections either."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(LONG_WAIT)
        self._listener.close()
        self.cut()
        for thread in self._passing:
            thread.join(LONG_WAIT)
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(DOCKER_HOST.removeprefix("unix://"))
            self._open += [client, engine]
            for source, sink in ((client, engine), (engine, client)):
                thread = threading.Thread(target=self._pass, args=[source, sink], daemon=True)
                self._passing.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.asked.append(data)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    folder = tmp_path / "with a space"
    folder.mkdir()
    made = Relay(folder / "engine.sock")
    yield made
    made.close()


def test_calls_one_after_the_other_ask_once_what_the_engine_speaks(relay: Relay) -> None:
    adapter = DockerAdapter(relay.address, str(uuid.uuid4()))
    for _ in range(5):
        assert adapter.observe(uuid.uuid4()) is None
        assert adapter.list() == []
    assert sum(b"GET /version" in data for data in relay.asked) == 1


def test_a_first_launch_and_its_stop_ask_the_engine_for_no_more_than_they_need(
    relay: Relay, launcher: Launcher
) -> None:
    adapter = DockerAdapter(relay.address, launcher.instance_id)
    request = launcher.request()

    launched = adapter.launch(request, cancelled=threading.Event())

    asked = relay.take_requests()
    started = next(at for at, line in enumerate(asked) if line.endswith("/start"))
    looked = [at for at, line in enumerate(asked) if line.endswith("/info")]
    assert len(looked) == 1, asked
    assert looked[0] > started, "the boot waits for what nobody needs before its end"
    name = f"/containers/{launched.reference}/json"
    assert not [line for line in asked if "/containers/json" in line or line.endswith(name)], asked

    observed = adapter.observe(request.run_id)
    assert observed is not None
    assert (observed.resource_id, observed.running) == (launched.resource_id, True)
    assert adapter.stop(request.run_id, seconds=LONG_WAIT)
    assert [line.rpartition("/")[2].partition("?")[0] for line in relay.take_requests()] == [
        *("json", "json", "stop"),
    ]


def test_calls_at_once_use_a_connection_each_and_all_are_answered(relay: Relay) -> None:
    adapter = DockerAdapter(relay.address, str(uuid.uuid4()))
    together = threading.Barrier(12)

    def ask(_: int) -> str:
        together.wait(LONG_WAIT)
        return adapter.engine_id()

    with ThreadPoolExecutor(12) as pool:
        answers = set(pool.map(ask, range(12)))
    assert answers == {adapter.engine_id()}


def test_an_engine_that_was_restarted_is_asked_again_without_a_fault(relay: Relay) -> None:
    adapter = DockerAdapter(relay.address, str(uuid.uuid4()))
    known = adapter.engine_id()
    for _ in range(3):
        relay.cut()
        assert adapter.engine_id() == known


def test_after_trouble_an_engine_is_asked_anew_what_it_speaks(relay: Relay) -> None:
    adapter = DockerAdapter(relay.address, str(uuid.uuid4()))
    adapter.check()
    with adapter._connect() as engine:
        engine.client.api._version = "9.99"  # type: ignore[attr-defined]  # what it spoke before it was exchanged
    with pytest.raises(LaunchError) as raised:
        adapter.check()
    assert raised.value.code == "adapter-unavailable"
    adapter.check()


def test_a_connection_that_nobody_takes_leaves_no_socket_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "engine.sock")
    opened: list[socket.socket] = []  # so the collector of garbage closes none of them
    connect = socket.socket.connect

    def remember(self: socket.socket, address: str) -> None:
        if address == path:
            opened.append(self)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", remember)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.close()
    connections = EngineConnections(f"unix://{path}", "")
    for _ in range(3):
        with pytest.raises(LaunchError), connections.connect(LONG_WAIT):
            pass
    assert [each.fileno() for each in opened] == [-1, -1, -1]
