"""A network for the steps of one build, under the rules that workspaces are under."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from uuid import UUID

from docker.errors import NotFound
from docker.models.networks import Network

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.engine_api import TICK_SECONDS, Engine, engine_errors, labels_of
from workspaces.runtimes.docker.networks import new_bridge_name

BUILD_LABEL = "svc.build"
BEGAN_LABEL = "svc.build-began"
"""Seconds since 1970: the engine tells the age of a network in the time of its own zone."""
LEAVE_SECONDS = 10.0


@contextlib.contextmanager
def build_network(
    connect: Callable[[], AbstractContextManager[Engine]],
    build_id: UUID,
    *,
    pool: ipaddress.IPv4Network,
    oldest: float,
    egress: Callable[[str], None] | None = None,
) -> Iterator[str]:
    """Return the name of a network that is there for the block.

    With ``egress`` it reaches the egress proxy only; that is called with the name of the bridge
    before the network is made.
    Networks of builds that nobody removed within ``oldest`` seconds go now.
    """
    with connect() as engine:
        _sweep(engine, oldest)
        labels = {
            "svc.instance": engine.instance_id,
            BUILD_LABEL: str(build_id),
            BEGAN_LABEL: str(int(time.time())),
        }
        name = f"svc-build-{build_id}"
        bridge = new_bridge_name(engine.instance_id, egress=egress is not None)
        if egress is not None:
            egress(bridge)
        network = engine.create_network(name, labels, pool=pool, start=build_id.int, bridge=bridge)
        try:
            yield name
        finally:
            # What became of the build matters more; a network that stays is swept later.
            with contextlib.suppress(LaunchError), engine_errors():
                _remove(engine, network)


def _remove(engine: Engine, network: Network) -> None:
    """Remove a network; a step of a build that was cancelled may take a moment to leave it."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while not engine.remove_network(network) and time.monotonic() < deadline:
        try:
            network.reload()
        except NotFound:
            return
        time.sleep(TICK_SECONDS)


def _sweep(engine: Engine, oldest: float) -> None:
    filters = {"label": [f"svc.instance={engine.instance_id}", BUILD_LABEL]}
    for network in engine.client.networks.list(filters=filters):
        began = int(labels_of(network).get(BEGAN_LABEL, "0"))
        if time.time() - began > oldest:
            engine.remove_network(network)
