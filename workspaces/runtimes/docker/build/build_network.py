"""A network for the steps of one build, under the rules that workspaces are under.

Steps are containers that the engine makes. It takes no limit of processes for them, so each gets
that as soon as it is connected.
"""

from __future__ import annotations

import contextlib
import ipaddress
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

import requests
import structlog
from docker.errors import APIError, DockerException, NotFound
from docker.models.networks import Network

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker.engine_api import TICK_SECONDS, Engine, engine_errors, labels_of
from workspaces.runtimes.docker.networks import new_bridge_name

BUILD_LABEL = "svc.build"
BEGAN_LABEL = "svc.build-began"
"""Seconds since 1970: the engine tells the age of a network in the time of its own zone."""
LEAVE_SECONDS = 10.0

log = structlog.get_logger(__name__)


@contextlib.contextmanager
def build_network(
    connect: Callable[[], AbstractContextManager[Engine]],
    build_id: UUID,
    *,
    pool: ipaddress.IPv4Network,
    pids: int,
    oldest: float,
    egress: Callable[[str], None] | None = None,
) -> Iterator[str]:
    """Return the name of a network that is there for the block, and limits what connects to it.

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
            # Connected by the time that the block begins: the first step is limited as well.
            with _limited(engine, str(network.id), pids):
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


@contextlib.contextmanager
def _limited(engine: Engine, network_id: str, pids: int) -> Iterator[None]:
    wanted = {"type": "network", "event": "connect", "network": network_id}
    events = engine.client.events(decode=True, filters=wanted)
    client = engine.client.api

    closing = threading.Event()
    broken = threading.Event()

    def limit() -> None:
        # Closing the stream ends it in one of these ways.
        with contextlib.suppress(
            DockerException, requests.RequestException, OSError, ValueError, AttributeError
        ):
            for event in events:
                attributes = event.get("Actor", {}).get("Attributes", {})
                _limit_one(client, str(attributes.get("container", "")), pids)
        if not closing.is_set():
            broken.set()

    thread = threading.Thread(target=limit, name=f"limits of build steps {network_id[:12]}")
    thread.start()
    try:
        yield
    finally:
        closing.set()
        events.close()
        thread.join()
    if broken.is_set():
        raise LaunchError(
            "adapter-unavailable",
            "The engine stopped reporting the build's steps, so they had no limits.",
        )


def _limit_one(client: Any, container: str, pids: int) -> None:
    try:
        # The SDK's own update knows no limit of processes.
        url = client._url("/containers/{0}/update", container)
        client._raise_for_status(client._post_json(url, data={"PidsLimit": pids}))
    except NotFound:
        return
    except APIError as error:
        log.warning("build_step_not_limited", reason=str(error.explanation))


def _sweep(engine: Engine, oldest: float) -> None:
    filters = {"label": [f"svc.instance={engine.instance_id}", BUILD_LABEL]}
    for network in engine.client.networks.list(filters=filters):
        began = int(labels_of(network).get(BEGAN_LABEL, "0"))
        if time.time() - began > oldest:
            engine.remove_network(network)
