"""Workspaces as Pods of a real cluster: what every runtime must hold, and what only Pods have.

All in one file, so that one process starts the cluster, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import docker
import pytest

from tests.registries.account import PUSH_REGISTRY
from tests.stack import cluster
from tests.stack.cluster import Namespace
from tests.workspaces.conftest import Launcher
from tests.workspaces.runtimes.pod_launcher import PodLauncher
from tests.workspaces.runtimes.pod_suite import *  # noqa: F403 - its tests and fixtures
from tests.workspaces.runtimes.runtime_suite import *  # noqa: F403 - its tests and fixtures

# The first test also has the cluster set up, and the image built.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    """A namespace with the installation's Role, in a cluster that enforces network policies."""
    folder: Path = tmp_path_factory.mktemp("cluster")
    with cluster.namespace(PUSH_REGISTRY, folder) as made:
        yield made


@pytest.fixture
def make_launcher(
    place: Namespace, docker_client: docker.DockerClient, workspace_image: str
) -> Iterator[Callable[..., Launcher]]:
    """Make launchers of unique installations; all that they left is removed afterwards."""
    made: list[PodLauncher] = []

    def make(**options: Any) -> Launcher:
        instance_id = str(uuid4())
        plain = Launcher(None, docker_client, workspace_image, instance_id)  # type: ignore[arg-type]
        made.append(PodLauncher.of(place, plain, **options))
        return made[-1]

    yield make
    for launcher in made:
        launcher.clean_up()


@pytest.fixture
def make_pods(make_launcher: Callable[..., Launcher]) -> Callable[..., Launcher]:
    """Make launchers whose Pods can be looked at."""
    return make_launcher


@pytest.fixture
def pods(launcher: Launcher) -> Launcher:
    """One whose Pods can be looked at."""
    return launcher


@pytest.fixture
def launcher(make_launcher: Callable[..., Launcher]) -> Launcher:
    """One installation with the default settings."""
    return make_launcher()
