"""What the agent says of a boot is heard also by a process that reads it late."""

from __future__ import annotations

import http.client
import threading
import time

import pytest

from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import DOCKER_HOST, Launcher
from workspaces.runtimes.docker.engine_api import EngineConnections

pytestmark = pytest.mark.docker


def test_a_status_that_came_along_with_the_head_of_the_answer_is_not_lost(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = launcher.launch(launcher.request())
    begin = http.client.HTTPResponse.begin

    def begin_late(response: http.client.HTTPResponse) -> None:
        time.sleep(0.5)
        begin(response)

    with monkeypatch.context() as patched:
        patched.setattr(http.client.HTTPResponse, "begin", begin_late)
        with EngineConnections(DOCKER_HOST, launcher.instance_id).connect(LONG_WAIT) as engine:
            container = launcher.container(runtime)
            status = engine.ask(container, threading.Event(), limit=LONG_WAIT)
    assert status is not None
    assert status.phase == "ready"
