"""An engine whose disk is full starts nothing, says why, and still stops and removes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from uuid import uuid4

import docker
import pytest

from deploy.services.engine import PrivateEngine
from tests.stack.disks import fill
from tests.stack.small_engine import small_engine
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import DOCKER_HOST, Launcher
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker import DockerAdapter

pytestmark = pytest.mark.docker


@pytest.fixture
def small(workspace_image: str) -> Iterator[tuple[PrivateEngine, Launcher]]:
    """An engine whose disk is soon full, and a launcher for it."""
    name = f"svc-test-small/{uuid4().hex}:latest"
    with contextlib.closing(docker.DockerClient(DOCKER_HOST, timeout=round(LONG_WAIT))) as machines:
        machines.images.get(workspace_image).tag(name)
        try:
            with (
                small_engine(DOCKER_HOST, name) as engine,
                contextlib.closing(
                    docker.DockerClient(engine.url, timeout=round(LONG_WAIT))
                ) as client,
            ):
                instance_id = str(uuid4())
                adapter = DockerAdapter(engine.url, instance_id)
                yield engine, Launcher(adapter, client, name, instance_id)
        finally:
            machines.images.remove(name)


def test_it_refuses_to_start_and_still_stops_and_removes(
    small: tuple[PrivateEngine, Launcher],
) -> None:
    engine, launcher = small
    launcher.launch()
    ballast = fill(engine.root)
    with pytest.raises(LaunchError, match="no space left on device") as caught:
        launcher.launch()
    assert caught.value.code == "launch-refused"
    assert len(launcher.containers()) == 1

    (run_id,) = {one.run_id for one in launcher.adapter.list()}
    assert launcher.adapter.stop(run_id, seconds=LONG_WAIT)
    assert launcher.adapter.remove(run_id)
    assert launcher.containers() == []
    ballast.unlink()
    launcher.launch()
