"""An open connection to one Docker Engine, and the calls made over it."""

from __future__ import annotations

import contextlib
import ipaddress
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import docker
import structlog
from docker.errors import APIError, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from docker.types import IPAMConfig, IPAMPool
from docker.utils import version_lt

from workspaces.runtimes import boot
from workspaces.runtimes.base import LaunchError, ObservedRuntime
from workspaces.runtimes.docker.engine_api import asking, outputs
from workspaces.runtimes.docker.engine_api.engine_failures import is_asked_again, refused
from workspaces.runtimes.docker.engine_api.labels import (
    RUN_LABEL,
    WARM_LABEL,
    container_name,
    is_of_run,
    observed,
    observed_in_list,
)
from workspaces.runtimes.docker.networks import MachineRoutes, network_options, new_bridge_name

OLDEST_API = "1.41"
"""Spoken by Docker 20.10, the oldest engine that is supported."""
SUBNET_TRIES = 16
STOP_SECONDS = 5

logger = structlog.get_logger(__name__)


class Engine:
    """An open connection to the engine; sees only what launches of this installation made."""

    def __init__(
        self,
        client: docker.DockerClient,
        instance_id: str,
        timeout: float,
        routes: MachineRoutes,
    ) -> None:
        self.client = client
        self.instance_id = instance_id
        self.timeout = timeout
        self.routes = routes

    def require_recent(self) -> None:
        """Raise ``adapter-unavailable`` unless the engine is recent enough and runs Linux."""
        version = self.client.version()
        found = str(version.get("ApiVersion", "0"))
        if version_lt(found, OLDEST_API):
            raise LaunchError(
                "adapter-unavailable",
                f"The Docker Engine is too old: it speaks API {found}, {OLDEST_API} is needed.",
            )
        if version.get("Os") != "linux":
            raise LaunchError(
                "adapter-unavailable", "The Docker Engine does not run Linux containers."
            )

    def has_image(self, reference: str) -> bool:
        """Whether the engine holds the image already."""
        try:
            self.client.images.get(reference)
        except ImageNotFound:
            return False
        return True

    def named(self, name: str) -> Container | None:
        """Return the container of that name, whoever it belongs to."""
        try:
            return self.client.containers.get(name)
        except NotFound:
            return None

    def containers(self, run_id: UUID | None = None) -> list[Container]:
        """Return our containers, ended ones included, of one run or of all.

        They know what a list tells: their id, ``attrs["Names"]`` and their status.
        """
        found = [
            container
            for filters in self._filters(run_id)
            for container in self.client.containers.list(all=True, filters=filters, sparse=True)
        ]
        return [each for each in found if run_id is None or is_of_run(each.attrs, run_id)]

    def _filters(self, run_id: UUID | None) -> list[dict[str, Any]]:
        """Return which lists of containers together have those of a run, or of all."""
        labelled = {"label": self._label_filter(run_id)}
        if run_id is None:
            return [labelled]
        warm = [*self._label_filter(None), WARM_LABEL]
        return [labelled, {"label": warm, "name": f"^/?{container_name(run_id)}"}]

    def listed(
        self, run_id: UUID | None = None, workspace_id: UUID | None = None
    ) -> list[ObservedRuntime]:
        """Return what is known of our containers; only those that do not run are looked at.

        A running one tells all that matters in the list, and there may be a thousand of them.
        """
        found = []
        filters = self._filters(run_id)
        if workspace_id is not None:
            filters = [{"label": self._label_filter(run_id, workspace_id)}]
        summaries = [
            summary
            for each in filters
            for summary in self.client.api.containers(all=True, filters=each)
        ]
        for summary in summaries:
            if summary.get("State") == "running":
                runtime = observed_in_list(summary)
            else:
                container = self.named(str(summary["Id"]))
                runtime = None if container is None else observed(container)
            if runtime is not None and run_id in (None, runtime.run_id):
                found.append(runtime)
        return found

    def networks(self, run_id: UUID | None = None) -> list[Network]:
        """Return our networks, of one run or of all."""
        return self.client.networks.list(filters={"label": self._label_filter(run_id)})

    def _label_filter(self, run_id: UUID | None, workspace_id: UUID | None = None) -> list[str]:
        return [
            f"svc.instance={self.instance_id}",
            RUN_LABEL if run_id is None else f"{RUN_LABEL}={run_id}",
            *([] if workspace_id is None else [f"svc.workspace={workspace_id}"]),
        ]

    def create_network(
        self,
        name: str,
        labels: Mapping[str, str],
        *,
        pool: ipaddress.IPv4Network,
        start: int,
        bridge: str = "",
    ) -> Network:
        """Create a bridge network on a free subnet of ``pool``; ``start`` spreads the choice.

        What the engine's machine is known to reach otherwise is not free. ``bridge`` is the name
        of its bridge, which decides about its rules; empty: a new one.
        """
        taken = [
            part.get("Subnet") or ""
            for network in self.client.networks.list()
            for part in (network.attrs.get("IPAM") or {}).get("Config") or ()
        ]
        subnets = self.routes.free_subnets(pool, taken, start=start)
        for _, subnet in zip(range(SUBNET_TRIES), subnets, strict=False):
            ipam = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
            try:
                made = self.client.api.create_network(
                    name,
                    driver="bridge",
                    ipam=IPAMConfig(pool_configs=[ipam]),
                    labels=dict(labels),
                    options=network_options(bridge or new_bridge_name(self.instance_id)),
                )
                # What it looks like nobody asks.
                return self.client.networks.prepare_model({"Id": made["Id"], "Name": name})
            except APIError as error:
                # Another launch was quicker, or something that the engine does not list is there.
                if "overlap" not in str(error.explanation).lower():
                    raise refused(error) from error
        raise LaunchError(
            "network-pool-empty",
            "No free network is left for the workspace; the operator has to enlarge the engine's "
            "address pool.",
        )

    def remove_container(self, container: Container) -> bool:
        """Remove a container with its volumes and wait until it is gone; False if it was."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                container.remove(force=True, v=True)
            except NotFound:
                return False
            except APIError as error:
                if not is_asked_again(error) or time.monotonic() > deadline:
                    raise
                time.sleep(asking.TICK_SECONDS)
            else:
                return True

    def resume_container(self, container: Container) -> None:
        """Let a paused container go on; a paused one can neither end in order nor be removed."""
        if container.status == "paused":
            with contextlib.suppress(NotFound):
                try:
                    container.unpause()
                except APIError as error:
                    if error.status_code not in (409, 500):
                        raise

    def stop_container(self, container: Container, seconds: float = STOP_SECONDS) -> None:
        """Have a running container end in order, or at least within so many seconds."""
        try:
            container.stop(timeout=math.ceil(seconds))
        except NotFound:
            return
        except APIError as error:
            if error.status_code not in (304, 409):
                raise

    def kill_container(self, container: Container) -> None:
        """End a container at once, if it runs."""
        with contextlib.suppress(NotFound):
            try:
                container.kill()
            except APIError as error:
                if error.status_code != 409:
                    raise

    def remove_network(self, network: Network) -> bool:
        """Remove a network; False when it is gone already or something is connected to it."""
        try:
            network.remove()
        except NotFound:
            return False
        except APIError as error:
            if error.status_code not in (403, 409):
                raise
            logger.info("network_kept_in_use", network=network.name)
            return False
        return True

    def ask(
        self, container: Container, cancelled: threading.Event, *, limit: float
    ) -> boot.BootStatus | None:
        """Ask the agent how the boot is getting on; see :func:`.asking.ask`."""
        return asking.ask(self.client, container, cancelled, limit=limit)

    def output_of(self, container: Container, command: Sequence[str]) -> bytes:
        """Return what a command in a container prints; see :func:`.outputs.output_of`."""
        return outputs.output_of(self.client, container, command, seconds=self.timeout)

    def last_status(self, container: Container) -> boot.BootStatus | None:
        """Read the status that the agent left in a container, running or not."""
        return asking.last_status(container)
