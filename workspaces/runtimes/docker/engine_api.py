"""Calls to one Docker Engine on behalf of one installation.

Every call has a time limit, and what goes wrong inside ``EngineConnections.connect`` comes out as a
``LaunchError``. The SDK's sessions are not meant for several threads, so a connection belongs to
one caller at a time; opening one costs more than most of the calls made over it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import re
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import docker
import requests
import structlog
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from docker.transport.unixconn import UnixHTTPConnection
from docker.types import IPAMConfig, IPAMPool
from docker.utils import version_lt

from workspaces.runtimes import boot
from workspaces.runtimes.base import LaunchError, ObservedRuntime
from workspaces.runtimes.docker.networks import (
    MachineRoutes,
    machine_routes,
    network_options,
    new_bridge_name,
)

OLDEST_API = "1.41"
"""Spoken by Docker 20.10, the oldest engine that is supported."""
SUBNET_TRIES = 16
MAX_IDLE = 8
"""How many connections are kept while nobody uses them."""
MAX_SOCKETS = 4
"""How many sockets each of them has at the most: the SDK opens one for each address it asks."""
STATUS_WAIT_SECONDS = 2
EXEC_GRACE_SECONDS = 10.0
TICK_SECONDS = 0.2
RUN_LABEL = "svc.run"
"""On what a launch made, and on nothing else. The label of the installation alone says less: images
have it too, so whatever somebody starts from one by hand inherits it, and the containers that read
an index of packages have it.
"""
WARM_LABEL = "svc.warm"
"""On what was made for the warm pool. Labels stay as they are, so once such a container is a run's,
its name says of which, and ``RUN_LABEL`` what it was launched as; its network has that, too.
"""
STOP_SECONDS = 5

_RUN_NAME = re.compile(r"svc-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-discarded-|\Z)")

logger = structlog.get_logger(__name__)

_NOT_YET_REMOVED = re.compile(
    r"remove (root )?filesystem|resource busy|directory not empty|did not receive an exit"
)


def _is_asked_again(error: APIError) -> bool:
    """Whether a removal that failed may succeed when the engine is asked for it again.

    409: somebody else's removal is in progress; the container is gone when that is done. 500 with
    words like these: an engine with much to do has not ended its processes or emptied its folder in
    time. It keeps such a container as "dead", to be removed.
    """
    said = str(error.explanation).lower()
    return error.status_code == 409 or (
        error.status_code == 500 and _NOT_YET_REMOVED.search(said) is not None
    )


def _connect(connection: UnixHTTPConnection) -> None:
    """Connect as the SDK does, which leaves its socket open where nobody listens."""
    with contextlib.ExitStack() as held:
        opened = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        opened.settimeout(connection.timeout)
        opened.connect(connection.unix_socket)
        held.pop_all()
    connection.sock = opened


UnixHTTPConnection.connect = _connect  # type: ignore[method-assign, assignment]


class EngineConnections:
    """Connections to one engine, kept for the next caller. Safe to use from several threads."""

    def __init__(self, docker_host: str, instance_id: str) -> None:
        self._docker_host = docker_host
        self._instance_id = instance_id
        self._idle: list[docker.DockerClient] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    @contextlib.contextmanager
    def connect(self, timeout: float) -> Iterator[Engine]:
        """Connect for the block; whatever the SDK raises in it becomes a ``LaunchError``.

        ``timeout`` limits each call, in seconds. After trouble no connection is used again: the
        engine may have come back as another one, which speaks an older version of its API.
        """
        with engine_errors():
            client = self._take(timeout)
            try:
                client.api.timeout = cast("int", timeout)  # the type stubs know no fractions
                routes = machine_routes(self._docker_host, self._instance_id)
                yield Engine(client, self._instance_id, timeout, routes)
            except BaseException:
                client.close()
                self.close_idle()
                raise
            self._keep(client)

    def _take(self, timeout: float) -> docker.DockerClient:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        # Not version="auto": when the engine does not answer, that leaves its socket open.
        seconds = cast("int", timeout)  # the type stubs know no fractions
        probe = docker.DockerClient(self._docker_host, version=OLDEST_API, timeout=seconds)
        with contextlib.closing(probe):
            spoken = str(probe.version(api_version=False)["ApiVersion"])
        return docker.DockerClient(
            self._docker_host, version=spoken, timeout=seconds, num_pools=MAX_SOCKETS
        )

    def _keep(self, client: docker.DockerClient) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE:
                self._idle.append(client)
                return
        client.close()

    def close_idle(self) -> None:
        """Close the connections that nobody uses; the next call opens a new one."""
        with self._lock:
            idle = self._idle[:]
            self._idle.clear()
        _close_all(idle)


def _close_all(clients: list[docker.DockerClient]) -> None:
    for client in clients:
        client.close()


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
        return [each for each in found if run_id is None or _is_of_run(each.attrs, run_id)]

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
                runtime = _running(summary)
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
                return self.client.networks.create(
                    name,
                    driver="bridge",
                    ipam=IPAMConfig(pool_configs=[ipam]),
                    labels=dict(labels),
                    options=network_options(bridge or new_bridge_name(self.instance_id)),
                )
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
                if not _is_asked_again(error) or time.monotonic() > deadline:
                    raise
                time.sleep(TICK_SECONDS)
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
        """Ask the agent how the boot is getting on; it takes up to two seconds to wait for news.

        None when it gave no answer that makes sense: it may not be up yet, or have ended. Raises
        ``NotFound`` when there is no such container any more.
        """
        command = [boot.AGENT, "status", "--wait", str(STATUS_WAIT_SECONDS)]
        api = self.client.api
        try:
            exec_id = api.exec_create(container.id, command, stderr=False, user="root")["Id"]
            stream: Any = api.exec_start(exec_id, socket=True)
        except NotFound:
            raise
        except APIError:
            # Not running, being started again, or out of processes; the caller looks at its state.
            return None
        # The SDK's own reader has no time limit, so the frames are read here.
        connection = cast("socket.socket", getattr(stream, "_sock", stream))
        try:
            seconds = min(limit, STATUS_WAIT_SECONDS + EXEC_GRACE_SECONDS)
            early = _read_along(connection, stream._response)
            return boot.parse_status(_frames(connection, early, seconds, cancelled))
        finally:
            stream.close()
            connection.close()

    def last_status(self, container: Container) -> boot.BootStatus | None:
        """Read the status that the agent left in a container, running or not."""
        try:
            chunks, _ = container.get_archive(boot.STATUS_FILE)
        except NotFound:
            return None
        data = boot.read_archived_file(chunks)
        return None if data is None else boot.parse_status(data)


def run_of(labels: Mapping[str, str], name: str) -> UUID:
    """Return the run that a container of ours belongs to; raises KeyError or ValueError."""
    if WARM_LABEL not in labels:
        return UUID(labels[RUN_LABEL])
    named = _RUN_NAME.match(name)
    if named is None:
        raise ValueError("no name of a run")
    return UUID(named[1])


def launched_as(container: Container) -> UUID:
    """Return the run that a container of ours was launched as; its network has that one's label."""
    labels = container.attrs.get("Labels") or labels_of(container)
    return UUID(labels[RUN_LABEL])


def _is_of_run(summary: Mapping[str, Any], run_id: UUID) -> bool:
    """Whether a line of the engine's list is of a container of that run."""
    try:
        return run_of(summary.get("Labels") or {}, _shortest_name(summary)) == run_id
    except (KeyError, ValueError):
        return False


def _shortest_name(summary: Mapping[str, Any]) -> str:
    # Links of others are longer.
    names = [str(name).removeprefix("/") for name in summary.get("Names") or ()]
    return min(names, key=len, default="")


def container_name(run_id: UUID) -> str:
    """Return the name that a run's container has."""
    return f"svc-{run_id}"


def is_of_a_launch(container: Container, instance_id: str) -> bool:
    """Whether a launch of that installation made the container."""
    labels = labels_of(container)
    return labels.get("svc.instance") == instance_id and RUN_LABEL in labels


def labels_of(thing: Container | Network) -> dict[str, str]:
    """Return a container's or network's labels."""
    if isinstance(thing, Container):
        return thing.labels or {}
    return cast("dict[str, str]", thing.attrs.get("Labels") or {})


def observed(container: Container) -> ObservedRuntime | None:
    """Return what is known of a container of ours; None when its labels make no sense."""
    labels, state = labels_of(container), container.attrs["State"]
    try:
        return ObservedRuntime(
            run_id=run_of(labels, str(container.name)),
            job_id=UUID(labels["svc.job"]),
            attempt_count=int(labels["svc.attempt-count"]),
            resource_id=str(container.id),
            reference=str(container.name),
            running=bool(state["Running"]),
            exit_code=state["ExitCode"] if state["Status"] in ("exited", "dead") else None,
            oom_killed=bool(state["OOMKilled"]),
            created_at=_timestamp(container.attrs["Created"]),
        )
    except (KeyError, ValueError):
        logger.warning("foreign_container_passed_over", container=container.name)
        return None


def _running(summary: Mapping[str, Any]) -> ObservedRuntime | None:
    """Return what a line of the engine's list says of a container that runs."""
    name = _shortest_name(summary)
    labels: Mapping[str, str] = summary.get("Labels") or {}
    try:
        return ObservedRuntime(
            run_id=run_of(labels, name),
            job_id=UUID(labels["svc.job"]),
            attempt_count=int(labels["svc.attempt-count"]),
            resource_id=str(summary["Id"]),
            reference=name,
            running=True,
            exit_code=None,
            oom_killed=False,
            created_at=datetime.fromtimestamp(int(summary["Created"]), UTC),
        )
    except (KeyError, ValueError):
        logger.warning("foreign_container_passed_over", container=name)
        return None


def refused(error: APIError) -> LaunchError:
    """Return the error for something the engine would not create or start, in its own words."""
    reason = boot.one_line(str(error.explanation or "no reason given"))
    return LaunchError(
        "launch-refused", f"The Docker Engine refused to start the workspace: {reason}"
    )


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """Turn every failure of the SDK and of what is below it into ``adapter-unavailable``.

    The texts of transport errors name sockets, addresses and calls; they are logged, not passed on.
    """
    try:
        yield
    except APIError as error:
        reason = boot.one_line(str(error.explanation or "no reason given"))
        raise LaunchError(
            "adapter-unavailable", f"The Docker Engine did not do what was asked: {reason}"
        ) from error
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
        logger.warning("engine_not_reached", reason=str(error))
        raise LaunchError("adapter-unavailable", "The Docker Engine does not answer.") from error
    except OSError as error:
        logger.warning("engine_connection_lost", reason=str(error))
        raise LaunchError(
            "adapter-unavailable", "The connection to the Docker Engine was lost."
        ) from error


def _read_along(connection: socket.socket, response: Any) -> bytes:
    """Return what the SDK has read of the output along with the head of the answer."""
    connection.settimeout(0)  # where that is nothing, the buffer would wait for more
    early: bytes = response.raw._fp.fp.peek()
    return early


def _frames(
    connection: socket.socket, early: bytes, seconds: float, cancelled: threading.Event
) -> bytes:
    """Return the payload of an exec's output frames, as far as it came in the time given."""
    deadline = time.monotonic() + seconds
    collected = bytearray(early)
    connection.settimeout(TICK_SECONDS)
    while time.monotonic() < deadline and not cancelled.is_set():
        try:
            chunk = connection.recv(65536)
        except TimeoutError:
            continue
        if not chunk or len(collected) > boot.MAX_STATUS_BYTES:
            break
        collected += chunk
    # Each frame: stream number, three zero bytes, length (big endian), then the payload.
    payload, offset = bytearray(), 0
    while offset + 8 <= len(collected):
        size = int.from_bytes(collected[offset + 4 : offset + 8], "big")
        payload += collected[offset + 8 : offset + 8 + size]
        offset += 8 + size
    return bytes(payload)


def _timestamp(text: Any) -> datetime:
    # Nanoseconds and a Z; Python keeps microseconds.
    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,6})?", str(text))
    if match is None:
        raise ValueError("not a time of the engine")
    return datetime.fromisoformat(match[1] + (match[2] or "")).replace(tzinfo=UTC)
