"""The named volumes of persistent workspaces, on a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import docker
import pytest

from tests.support.removal import remove_container
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import DOCKER_HOST, Launcher
from workspaces.runtimes.base import LaunchError, Volume
from workspaces.runtimes.docker import volumes
from workspaces.runtimes.docker.creation import create_container
from workspaces.runtimes.docker.engine_api import EngineConnections
from workspaces.runtimes.docker.volumes import volume_name

pytestmark = pytest.mark.docker
HOME = Volume("home", "/home/workspace")
WORK = Volume("work", "/workspace")
KEPT = (HOME, WORK)


@pytest.fixture(autouse=True)
def _no_volume_is_left(launcher: Launcher) -> Iterator[None]:
    yield
    mine: dict[str, Any] = {"label": f"svc.instance={launcher.instance_id}"}
    for container in launcher.client.containers.list(all=True, filters=mine):
        remove_container(container)
    for volume in launcher.client.volumes.list(filters=mine):
        volume.remove(force=True)


def test_a_volume_is_filled_from_the_image_and_belongs_to_the_user(launcher: Launcher) -> None:
    runtime = launcher.launch(launcher.request(volumes=KEPT, fresh_volumes=True))
    code, output = launcher.inside(runtime, "sh", "-c", "ls -A ~ && touch ~/a /workspace/repo/b")
    assert code == 0, output
    assert ".bashrc" in output
    _, mounts = launcher.inside(runtime, "cat", "/proc/self/mounts")
    assert " /home/workspace " in mounts
    assert " /workspace " in mounts


def test_what_is_in_a_volume_is_there_in_the_next_container(launcher: Launcher) -> None:
    request = launcher.request(volumes=KEPT, fresh_volumes=True)
    launcher.inside(launcher.launch(request), "sh", "-c", "echo mine > ~/note")
    assert launcher.adapter.stop(request.run_id, seconds=LONG_WAIT)
    launcher.adapter.remove(request.run_id)
    again = launcher.request(workspace_id=request.workspace_id, volumes=KEPT)
    runtime = launcher.launch(again)
    assert launcher.inside(runtime, "cat", "/home/workspace/note") == (0, "mine\n")


def test_a_fresh_start_takes_nothing_over(launcher: Launcher) -> None:
    request = launcher.request(volumes=KEPT, fresh_volumes=True)
    launcher.inside(launcher.launch(request), "sh", "-c", "echo mine > ~/note; rm ~/.bashrc")
    launcher.adapter.remove(request.run_id)
    again = launcher.request(workspace_id=request.workspace_id, volumes=KEPT, fresh_volumes=True)
    runtime = launcher.launch(again)
    _, output = launcher.inside(runtime, "ls", "-A", "/home/workspace")
    assert "note" not in output
    assert ".bashrc" in output


def test_volumes_have_the_installations_and_the_workspaces_labels(launcher: Launcher) -> None:
    request = launcher.request(volumes=KEPT, fresh_volumes=True)
    launcher.launch(request)
    for volume in KEPT:
        name = volume_name(request.workspace_id, volume.purpose)
        assert launcher.client.volumes.get(name).attrs["Labels"] == {
            "svc.instance": launcher.instance_id,
            "svc.workspace": str(request.workspace_id),
            "svc.purpose": volume.purpose,
        }
    assert launcher.adapter.workspaces_with_volumes() == {request.workspace_id}


def test_volumes_are_removed_for_one_workspace_and_again_without_harm(launcher: Launcher) -> None:
    mine = launcher.request(volumes=KEPT, fresh_volumes=True)
    other = launcher.request(volumes=(HOME,), fresh_volumes=True)
    for request in (mine, other):
        launcher.launch(request)
        launcher.adapter.remove(request.run_id)
    assert launcher.adapter.remove_volumes(mine.workspace_id) == 2
    assert launcher.adapter.remove_volumes(mine.workspace_id) == 0
    assert launcher.adapter.workspaces_with_volumes() == {other.workspace_id}


def test_a_volume_that_is_in_use_is_not_removed(launcher: Launcher) -> None:
    request = launcher.request(volumes=(HOME,), fresh_volumes=True)
    launcher.launch(request)
    with pytest.raises(LaunchError) as caught:
        launcher.adapter.remove_volumes(request.workspace_id)
    assert caught.value.code == "volume-in-use"


def test_the_end_of_a_container_takes_no_named_volume_along(launcher: Launcher) -> None:
    request = launcher.request(volumes=KEPT, fresh_volumes=True)
    launcher.launch(request)
    launcher.adapter.remove(request.run_id)
    assert launcher.adapter.workspaces_with_volumes() == {request.workspace_id}


def test_a_strangers_volume_of_that_name_is_neither_used_nor_removed(
    launcher: Launcher, docker_client: docker.DockerClient
) -> None:
    workspace_id = uuid4()
    name = volume_name(workspace_id, "home")
    strange = docker_client.volumes.create(name, labels={"svc.workspace": str(workspace_id)})
    try:
        for fresh in (True, False):
            request = launcher.request(
                workspace_id=workspace_id, volumes=(HOME,), fresh_volumes=fresh
            )
            with pytest.raises(LaunchError) as caught:
                launcher.launch(request)
            assert caught.value.code == "launch-refused"
        assert launcher.adapter.remove_volumes(workspace_id) == 0
        assert docker_client.volumes.get(name).attrs["CreatedAt"] == strange.attrs["CreatedAt"]
    finally:
        strange.remove(force=True)


def test_a_stop_ends_a_container_in_order_and_leaves_it_readable(launcher: Launcher) -> None:
    request = launcher.request()
    runtime = launcher.launch(request)
    assert launcher.adapter.stop(request.run_id, seconds=LONG_WAIT)
    container = launcher.container(runtime)
    assert container.status == "exited"
    with launcher.adapter.read_files(request.run_id, "/var/lib/svc/status.json") as chunks:
        assert chunks is not None
        assert b"stopped" in b"".join(chunks)
    assert launcher.adapter.stop(request.run_id, seconds=LONG_WAIT)
    launcher.adapter.remove(request.run_id)
    assert not launcher.adapter.stop(request.run_id, seconds=LONG_WAIT)


def test_a_paused_container_is_stopped_too(launcher: Launcher) -> None:
    request = launcher.request()
    container = launcher.container(launcher.launch(request))
    container.pause()
    assert launcher.adapter.stop(request.run_id, seconds=LONG_WAIT)
    container.reload()
    assert container.status == "exited"
    assert container.attrs["State"]["ExitCode"] != 137


def test_a_volume_that_was_removed_just_before_its_container_was_made_is_found_by_its_labels(
    launcher: Launcher,
) -> None:
    """The engine makes it again with the container: a launch that came late, beside a deletion."""
    request = launcher.request(volumes=KEPT)
    with EngineConnections(DOCKER_HOST, launcher.instance_id).connect(60.0) as engine:
        mounts = volumes.prepare(engine, request.workspace_id, KEPT)
        assert volumes.remove_all(engine, request.workspace_id) == 2
        create_container(engine, request, None, mounts)
    launcher.adapter.remove(request.run_id)
    assert launcher.adapter.workspaces_with_volumes() == {request.workspace_id}
    assert launcher.adapter.remove_volumes(request.workspace_id) == 2


def test_a_fresh_start_that_came_too_late_takes_nothing_away(launcher: Launcher) -> None:
    """Its worker slept; meanwhile the workspace was started by another one, and stopped."""
    request = launcher.request(volumes=KEPT, fresh_volumes=True)
    launcher.inside(launcher.launch(request), "sh", "-c", "echo mine > ~/note")
    launcher.adapter.remove(request.run_id)

    def lost() -> None:
        raise LookupError("another worker has it")

    workspace_id = request.workspace_id
    late = launcher.request(
        workspace_id=workspace_id, volumes=KEPT, fresh_volumes=True, before_removal=lost
    )
    with pytest.raises(LookupError):
        launcher.launch(late)
    runtime = launcher.launch(launcher.request(workspace_id=workspace_id, volumes=KEPT))
    assert launcher.inside(runtime, "cat", "/home/workspace/note") == (0, "mine\n")
