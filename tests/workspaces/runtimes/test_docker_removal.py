"""A container is removed in the end, also by an engine that cannot do it at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import docker
import pytest
from docker.errors import APIError
from docker.models.containers import Container

from tests.support.waiting import LONG_WAIT
from workspaces.runtimes.docker.engine_api import OLDEST_API, Engine
from workspaces.runtimes.docker.networks import MachineRoutes

CONTAINER = "0" * 64
BUSY = 'driver "overlay2" failed to remove root filesystem: unlinkat /a: device or resource busy'
NOT_EMPTY = f"unable to remove filesystem for {CONTAINER}: unlinkat /a: directory not empty"
ALIVE = "could not kill: tried to kill container, but did not receive an exit event"


class _Handler(BaseHTTPRequestHandler):
    server: BusyEngine

    def log_message(self, *args: object) -> None:
        """Write nothing."""

    def do_DELETE(self) -> None:
        """Answer with what is next."""
        status, message = self.server.answers.pop(0)
        content = json.dumps({"message": message}).encode() if message else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class BusyEngine(ThreadingHTTPServer):
    """An engine that answers removals with what it is told to, one after the other."""

    answers: list[tuple[int, str]]

    def remove(self, *answers: tuple[int, str]) -> bool:
        """Have a container removed as the adapter does it."""
        self.answers = list(answers)
        url = f"tcp://127.0.0.1:{self.server_address[1]}"
        with closing(docker.DockerClient(url, version=OLDEST_API, timeout=round(LONG_WAIT))) as api:
            container: Container = api.containers.prepare_model({"Id": CONTAINER})
            engine = Engine(api, "somebody", LONG_WAIT, MachineRoutes("somebody"))
            return engine.remove_container(container)


@pytest.fixture
def engine() -> Iterator[BusyEngine]:
    with BusyEngine(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    "answer",
    [
        (409, f"removal of container {CONTAINER} is already in progress"),
        (500, BUSY),
        (500, NOT_EMPTY),
        (500, ALIVE),
    ],
)
def test_a_removal_that_a_busy_engine_did_not_finish_is_asked_for_again(
    engine: BusyEngine, answer: tuple[int, str]
) -> None:
    assert engine.remove(answer, answer, (204, "")) is True
    assert engine.remove(answer, (404, f"No such container: {CONTAINER}")) is False
    assert engine.answers == []


def test_a_removal_that_fails_for_another_reason_is_not_asked_for_again(engine: BusyEngine) -> None:
    with pytest.raises(APIError, match="the disk is broken"):
        engine.remove((500, "the disk is broken"), (204, ""))
    assert engine.answers == [(204, "")]
