"""The API process that the generated calls of a file go to."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

import docker
import pytest
from _pytest.nodeid import NodeId
from django.core.management import call_command
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from tests.security.cases.calls import Calls, served
from tests.security.owned import fill
from tests.workspaces.conftest import DOCKER_HOST, Launcher
from tests.workspaces.conftest import docker_client as docker_client
from tests.workspaces.conftest import workspace_image as workspace_image
from workspaces.models import RuntimeInstance
from workspaces.runtimes.docker import DockerAdapter


class Launched(NamedTuple):
    """What the API has to know of a container to reach it."""

    instance_id: str
    run_id: UUID


@pytest.fixture(scope="module")
def container(request: pytest.FixtureRequest) -> Iterator[Launched | None]:
    """The container of the one workspace, where the module's calls are about one that runs."""
    if not getattr(request.module, "RUNS", False):
        yield None
        return
    client: docker.DockerClient = request.getfixturevalue("docker_client")
    instance_id = str(uuid4())
    adapter = DockerAdapter(DOCKER_HOST, instance_id)
    image: str = request.getfixturevalue("workspace_image")
    launcher = Launcher(adapter, client, image, instance_id)
    wanted = launcher.request()
    launched = launcher.launch(wanted)
    try:
        yield Launched(instance_id, wanted.run_id)
    finally:
        client.containers.get(launched.resource_id).remove(force=True, v=True)
        adapter.close()


@pytest.fixture(scope="module")
def calls(
    container: Launched | None,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Calls]:
    """Calls to an API whose database has something of everything, and is empty afterwards."""
    key = base64.b64encode(bytes(32)).decode()
    with django_db_blocker.unblock(), override_settings(SVC_CREDENTIALS_KEY=key):
        try:
            place, settings = fill(), {}
            if container is not None:
                rows = RuntimeInstance.objects.filter(attempt_id=place.ids["attemptId"])
                rows.update(run_id=container.run_id)
                settings["SVC_INSTANCE_ID"] = container.instance_id
            with served(tmp_path_factory.mktemp("api"), place, **settings) as made:
                yield made
        finally:
            call_command("flush", interactive=False, verbosity=0)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Name each operation's test in its id: pytest has it in the test's name only."""
    if item.path.parent == Path(__file__).parent and not item.nodeid.endswith("]"):
        file, _, _ = item.nodeid.partition("::")
        item._id = NodeId.parse(f"{file}::{item.name}")
