"""What every runtime must hold, held by the Docker adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.removal import remove_container
from tests.workspaces.conftest import Launcher
from tests.workspaces.runtimes.runtime_suite import *  # noqa: F403 - its tests and fixtures

pytestmark = pytest.mark.docker


@pytest.fixture
def launcher(make_launcher: Callable[..., Launcher]) -> Iterator[Launcher]:
    """One installation, whose volumes are gone afterwards, too."""
    launcher = make_launcher()
    yield launcher
    mine = {"label": f"svc.instance={launcher.instance_id}"}
    for container in launcher.containers():
        remove_container(container)
    for volume in launcher.client.volumes.list(filters=mine):
        volume.remove(force=True)
