"""Removing a container after a test, however busy the engine is."""

from __future__ import annotations

from docker.models.containers import Container

from tests.support.waiting import LONG_WAIT
from workspaces.runtimes.docker.engine_api import Engine
from workspaces.runtimes.docker.networks import MachineRoutes


def remove_container(container: Container) -> None:
    """Remove a container with its volumes, and be content when somebody else has."""
    assert container.client is not None
    Engine(container.client, "", LONG_WAIT, MachineRoutes("")).remove_container(container)
