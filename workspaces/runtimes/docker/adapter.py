"""``DockerAdapter``: the runtime adapter for a Docker Engine."""

from __future__ import annotations

import builtins
import contextlib
import functools
import ipaddress
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from uuid import UUID

from docker.errors import APIError, NotFound
from docker.models.containers import Container

from workspaces.runtimes import boot, credentials
from workspaces.runtimes.base import (
    AgentAnswer,
    AgentChannel,
    Collect,
    EngineFacts,
    FileReader,
    LaunchedRuntime,
    LaunchError,
    LaunchRequest,
    ObservedRuntime,
    RenewedCredential,
)
from workspaces.runtimes.docker import agent_socket, disk_use, kernel_limits, volumes, wire
from workspaces.runtimes.docker.agent_socket import KnownPlaces
from workspaces.runtimes.docker.build.build_network import build_network
from workspaces.runtimes.docker.creation import warm_key
from workspaces.runtimes.docker.engine_api import (
    RUN_LABEL,
    Engine,
    EngineConnections,
    container_name,
    is_of_a_launch,
    labels_of,
    launched_as,
    observed,
)
from workspaces.runtimes.docker.exec_channel import ExecChannel
from workspaces.runtimes.docker.launch import Launch
from workspaces.runtimes.docker.network_guard.keeper import NetworkGuard


class DockerAdapter:
    """Launches, observes and removes the workspaces of one installation on one Docker Engine.

    ``docker_host`` is a ``unix://`` or ``tcp://`` address; ``network_pool`` an IPv4 network that
    nothing else on the engine's machine uses; ``engine_timeout`` limits each call, in seconds, and
    ``agent_silence`` how long a live container may leave every question unanswered. The
    registry's name and password are for pulling. ``agent_socket``: the agent is called without the
    engine where that is possible. ``engine_name`` is in endpoints; the first engine has none there.
    Safe to use from several threads: no two calls use one connection at a time.
    """

    name = "docker"

    def __init__(
        self,
        docker_host: str,
        instance_id: str,
        network_pool: str = "10.213.0.0/16",
        *,
        engine_timeout: float = 60.0,
        agent_silence: float = 120.0,
        registry_username: str | None = None,
        registry_password: str | None = None,
        agent_socket: bool = True,
        engine_name: str = "",
    ) -> None:
        self.instance_id = instance_id
        self._docker_host = docker_host
        self._pool = ipaddress.IPv4Network(network_pool)
        self._connections = EngineConnections(docker_host, instance_id)
        self._engine_name = engine_name
        self._timeout = engine_timeout
        self._silence = agent_silence
        self._calls_directly = agent_socket
        self._places = KnownPlaces()
        self._registry_auth = (
            {"username": registry_username, "password": registry_password or ""}
            if registry_username
            else None
        )

    def close(self) -> None:
        """Close the idle connections to the engine; the next call opens a new one."""
        self._connections.close_idle()

    def check(self) -> None:
        """Raise ``adapter-unavailable`` unless a Linux engine with API 1.41 or later answers."""
        with self._connect() as engine:
            engine.require_recent()

    def build_network(
        self,
        build_id: UUID,
        *,
        oldest: float,
        egress: Callable[[str], None] | None = None,
    ) -> contextlib.AbstractContextManager[str]:
        """Have a network for the steps of one build.

        ``egress`` is that of ``LaunchRequest``.
        Networks that builds left more than ``oldest`` seconds ago are removed.
        """
        return build_network(self._connect, build_id, pool=self._pool, oldest=oldest, egress=egress)

    def network_guard(
        self,
        *,
        allowed: Iterable[str] = (),
        image: str = "",
        base_image: str = "",
        egress_port: int = 0,
    ) -> NetworkGuard:
        """Return what keeps workspaces away from the engine's machine and from each other.

        ``allowed`` are private IPv4 networks that workspaces may reach nevertheless; ``image`` has
        nftables, without it one is built from ``base_image``. ``egress_port`` is where the egress
        proxy listens on the engine's machine; 0: workspaces with a policy reach nothing.
        """
        return NetworkGuard(
            self._connect,
            self.instance_id,
            pool=self._pool,
            allowed=tuple(map(ipaddress.IPv4Network, allowed)),
            image=image,
            base_image=base_image,
            egress_port=egress_port,
        )

    def disk_use(
        self, run_ids: Collection[UUID], *, image: str, seconds: float, stopped: threading.Event
    ) -> dict[UUID, int]:
        """Return the bytes on disk of runs that run; see ``disk_use.measured``."""
        with self._connect() as engine:
            return disk_use.measured(engine, run_ids, image=image, seconds=seconds, stopped=stopped)

    def lift_kernel_limits(self, *, image: str) -> str:
        """Lift limits that all workspaces share; see ``kernel_limits.lift``."""
        with self._connect() as engine:
            return kernel_limits.lift(engine, image)

    def engine_id(self) -> str:
        """Return the id that the engine made for itself when it was first started."""
        with self._connect() as engine:
            return str(engine.client.info().get("ID") or "")

    def facts(self) -> EngineFacts:
        """Return what the engine is; raises as every call does."""
        with self._connect() as engine:
            told = engine.client.info()
        return EngineFacts(
            engine_id=str(told.get("ID") or ""),
            memory_bytes=int(told.get("MemTotal") or 0),
            cpus=int(told.get("NCPU") or 0),
        )

    def launch(self, request: LaunchRequest, *, cancelled: threading.Event) -> LaunchedRuntime:
        """Return the run's ready container; see ``RuntimeAdapter.launch`` and ``launch``."""
        if request.instance_id != self.instance_id:
            raise ValueError("the request belongs to another installation")
        with self._connect() as engine:
            return Launch(
                engine,
                request,
                cancelled,
                pool=self._pool,
                registry_auth=self._registry_auth,
                connect=self._connect,
                silence=self._silence,
                reader=self._reader,
                open_agent=self._open,
                calls_directly=self._calls_directly,
                engine_name=self._engine_name,
            ).run()

    def warm_key(self, request: LaunchRequest) -> str:
        """Return what the containers of the warm pool have in common that the run could take."""
        return warm_key(request)

    def observe(self, run_id: UUID) -> ObservedRuntime | None:
        """Return the run's container as the engine sees it now, or None."""
        with self._connect() as engine:
            container = self._container(engine, run_id)
            if container is not None:
                return observed(container)
            return next(iter(_one_for_each(engine.listed(run_id))), None)

    def list(self, workspace_id: UUID | None = None) -> list[ObservedRuntime]:
        """Return the container of every run, of one workspace or of all, ended ones included."""
        with self._connect() as engine:
            return _one_for_each(engine.listed(workspace_id=workspace_id))

    def stop(self, run_id: UUID, *, seconds: float) -> bool:
        """Have the run's containers end in order; a paused one goes on for that."""
        with self._connect() as engine:
            container = self._container(engine, run_id)
            found = [container] if container else engine.containers(run_id)
            for container in found:
                engine.resume_container(container)
                engine.stop_container(container, seconds)
            return bool(found)

    def remove_containers(self, run_id: UUID) -> bool:
        """Remove the run's containers with their volumes; True if there were any."""
        with self._connect() as engine:
            removed = [engine.remove_container(each) for each in engine.containers(run_id)]
            return any(removed)

    def remove(self, run_id: UUID, *, collect: Collect | None = None) -> bool:
        """Remove the run's containers with their volumes, and its networks; True if any were."""
        with self._connect() as engine:
            removed: builtins.list[bool] = []
            if collect is not None:
                for container in engine.containers(run_id):
                    engine.resume_container(container)
                    engine.stop_container(container)
                    collect(self._reader(engine, container))
            found = engine.containers(run_id)
            removed.extend(map(engine.remove_container, found))
            for each in {run_id, *map(launched_as, found)}:
                removed.extend(map(engine.remove_network, engine.networks(each)))
            return any(removed)

    def remove_volumes(self, workspace_id: UUID) -> int:
        """Remove the workspace's named volumes; return how many there were."""
        with self._connect() as engine:
            return volumes.remove_all(engine, workspace_id)

    def workspaces_with_volumes(self) -> set[UUID]:
        """Return the workspaces that have named volumes of this installation."""
        with self._connect() as engine:
            return volumes.workspaces_with_volumes(engine)

    def sweep_networks(self, keep_run_ids: Collection[UUID]) -> int:
        """Remove this installation's unused networks whose run is not in ``keep_run_ids``."""
        kept = {str(run_id) for run_id in keep_run_ids}
        with self._connect() as engine:
            return sum(
                engine.remove_network(network)
                for network in engine.networks()
                if labels_of(network).get(RUN_LABEL) not in kept
            )

    def call_agent(
        self, run_id: UUID, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> AgentAnswer:
        """Run the agent in the run's container, as root, and wait for its answer."""
        deadline = time.monotonic() + timeout
        channel = self._exec(run_id, arguments, min(timeout, self._timeout))
        with contextlib.closing(channel):
            answer = channel.answer(stdin, max(0.0, deadline - time.monotonic()))
        if answer is None:
            raise LaunchError(
                "agent-silent", f"The agent in the workspace gave no answer for {timeout:g} s."
            )
        return answer

    def open_agent(self, run_id: UUID, arguments: Sequence[str]) -> AgentChannel:
        """Start the agent in the run's container, as root, and stay connected to it."""
        return self._exec(run_id, arguments, self._timeout)

    def waits_for_credentials(self, run_id: UUID) -> bool:
        """Whether the boot in the run's container waits for its credentials."""
        answer = self.call_agent(run_id, ("status",), timeout=credentials.SECONDS)
        status = boot.parse_status(answer.stdout)
        return status is not None and status.phase == credentials.PHASE

    def deliver_credentials(self, run_id: UUID, document: bytes) -> None:
        """Give the run's container its credentials, on the standard input of an exec."""
        credentials.require_taken(
            self.call_agent(
                run_id, credentials.DELIVER, stdin=document, timeout=credentials.SECONDS
            )
        )

    def collect_credentials(self, run_id: UUID) -> builtins.list[RenewedCredential]:
        """Return what the run's container holds of accounts whose secrets renew themselves."""
        return credentials.renewed(
            self.call_agent(run_id, credentials.COLLECT, timeout=credentials.SECONDS)
        )

    def withdraw_credentials(self, run_id: UUID, account_ids: Collection[UUID]) -> None:
        """Remove accounts from the run's container."""
        document = credentials.withdrawal(account_ids)
        credentials.require_taken(
            self.call_agent(
                run_id, credentials.WITHDRAW, stdin=document, timeout=credentials.SECONDS
            )
        )

    @contextlib.contextmanager
    def read_files(self, run_id: UUID, path: str) -> Iterator[Iterator[bytes] | None]:
        """Open a tar stream of ``path`` in the run's container, whether it runs or has ended."""
        with self._connect() as engine:
            container = self._container(engine, run_id)
            reader = None if container is None else self._reader(engine, container)
        if reader is None:
            yield None
            return
        with reader(path) as chunks:
            yield chunks

    def _reader(self, engine: Engine, container: Container) -> FileReader:
        return functools.partial(
            wire.open_archive,
            self._docker_host,
            str(engine.client.api.api_version),
            str(container.id),
            timeout=self._timeout,
        )

    def _exec(self, run_id: UUID, arguments: Sequence[str], timeout: float) -> ExecChannel:
        if self._calls_directly and (channel := self._places.call(run_id, arguments)):
            return channel
        with self._connections.connect(timeout) as engine:
            container = self._container(engine, run_id)
            if container is None:
                raise wire.refusal(404, b"")
            if container.status == "paused":
                # It holds everything still, and may go on: that is no end.
                raise LaunchError("adapter-unavailable", "The workspace's container is paused.")
            self._places.remember(run_id, container)
            return self._open(engine, container, arguments, timeout)

    def _open(
        self, engine: Engine, container: Container, arguments: Sequence[str], timeout: float
    ) -> ExecChannel:
        if self._calls_directly and (channel := agent_socket.call_soon(container, arguments)):
            return channel
        try:
            exec_id = engine.client.api.exec_create(
                container.id, [boot.AGENT, *arguments], stdin=True, user="root"
            )["Id"]
        except APIError as error:
            raise wire.refusal(error.status_code or 0, str(error.explanation).encode()) from error
        connection, received = wire.start_exec(
            self._docker_host, str(engine.client.api.api_version), exec_id, timeout=timeout
        )
        return ExecChannel(connection, received, lambda: self._exit_status(exec_id))

    def _exit_status(self, exec_id: str) -> tuple[bool, int | None]:
        """Return whether an exec still runs, and its exit code if that is its own."""
        with self._connect() as engine:
            try:
                found = engine.client.api.exec_inspect(exec_id)
                code = found["ExitCode"]
                if found["Running"] or code is None:
                    return bool(found["Running"]), None
                if (
                    code != 137
                    or engine.client.containers.get(found["ContainerID"]).attrs["State"]["Running"]
                ):
                    return False, int(code)
            except NotFound:
                pass
        return False, None

    def _container(self, engine: Engine, run_id: UUID) -> Container | None:
        container = engine.named(container_name(run_id))
        ours = container is not None and is_of_a_launch(container, self.instance_id)
        return container if ours else None

    def _connect(self) -> contextlib.AbstractContextManager[Engine]:
        return self._connections.connect(self._timeout)


def _one_for_each(runtimes: Iterable[ObservedRuntime]) -> list[ObservedRuntime]:
    """Return one of each run.

    A run has a second one while a launch is discarding it, renamed; the one with the name counts.
    """
    found: dict[UUID, ObservedRuntime] = {}
    for runtime in runtimes:
        if runtime.run_id not in found or runtime.reference == container_name(runtime.run_id):
            found[runtime.run_id] = runtime
    return list(found.values())
