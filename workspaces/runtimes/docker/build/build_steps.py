"""The containers in which the steps of a build run.

A step is made of the image of the step before, gets its files, runs one program, and becomes the
next image. A builder of the engine would give that program the capabilities of every container, raw
sockets and device files among them, and a limit of processes late or never.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import structlog
from docker.errors import APIError, NotFound
from docker.types import LogConfig

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.boot import one_line
from workspaces.runtimes.docker import seccomp
from workspaces.runtimes.docker.creation import (
    AGENT_CAPABILITIES,
    ASKED_NAME_SERVER,
    SUDO_CAPABILITIES,
)
from workspaces.runtimes.docker.engine_api import Engine, EngineConnections

STEP_NAME = "svc-step"
"""How the names of the containers begin."""
NO_NETWORK = "none"
_CAPABILITIES = (*AGENT_CAPABILITIES, *SUDO_CAPABILITIES)
_FILE_CAPABILITIES = "SETFCAP"
"""Packages of Fedora and Arch bring files that have capabilities, and rpm fails without it."""
_NO_PROGRAM = ("/no-program",)
"""The engine wants one for each container, though it is never started."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What each step of a build may use, and the network it is in.

    ``network`` makes one for a build, which is there for the block; its name is the result. What it
    is called with is None, or makes known that the network is under an egress policy: then it is
    called with the name of the bridge.
    """

    network: Callable[[Callable[[str], None] | None], AbstractContextManager[str]]
    memory_mb: int
    cpus: float
    pids: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """The container of one step. What is empty is as in ``image``; of ``argv``: runs nothing."""

    image: str
    argv: tuple[str, ...]
    user: str
    working_directory: str
    environment: tuple[str, ...]
    """Each as ``NAME=value``."""
    network: str
    asks_proxy: bool
    """The egress proxy answers what is asked of name servers."""
    capabilities: tuple[str, ...]
    labels: Mapping[str, str]


def capabilities_of(*, packages: bool) -> tuple[str, ...]:
    """Return what a step may do: what a workspace with ``sudo`` may, and what packages need."""
    return (*_CAPABILITIES, _FILE_CAPABILITIES) if packages else _CAPABILITIES


class StepContainers:
    """Makes and removes the containers of steps in one engine; may be shared by threads.

    ``timeout`` limits each call of the engine, in seconds. Methods raise ``LaunchError``:
    ``build-command-failed`` when the engine refuses, ``adapter-unavailable`` when it does not
    answer.
    """

    def __init__(self, docker_host: str, limits: StepLimits, timeout: float) -> None:
        self._limits = limits
        self._connections = EngineConnections(docker_host, "")
        self._timeout = timeout

    def create(self, name: str, request: StepRequest) -> None:
        """Create a container, which is not started."""
        memory = f"{self._limits.memory_mb}m"
        with self._asked() as engine:
            engine.client.containers.create(
                request.image,
                list(request.argv or _NO_PROGRAM),
                name=name,
                entrypoint=[""],
                user=request.user or None,
                working_dir=request.working_directory or None,
                environment=list(request.environment),
                labels=dict(request.labels),
                network_mode=request.network,
                dns=[ASKED_NAME_SERVER] if request.asks_proxy else None,
                cap_drop=["ALL"],
                cap_add=list(request.capabilities),
                security_opt=[f"seccomp={seccomp.profile()}"],
                mem_limit=memory,
                memswap_limit=memory,  # equal: no swap on top
                nano_cpus=int(self._limits.cpus * 1e9),
                pids_limit=self._limits.pids,
                log_config=LogConfig(type="none"),  # it prints to us alone
                use_config_proxy=False,  # what it has in its environment gets into the image
            )

    def put(self, name: str, archive: Iterable[bytes]) -> None:
        """Unpack a tar archive at the root of a container that has not been started."""
        with self._asked() as engine:
            engine.client.api.put_archive(name, "/", archive)

    def remove(self, name: str) -> None:
        """End and remove a container, if there is one of that name; a failure is logged."""
        try:
            with self._asked() as engine, contextlib.suppress(NotFound):
                engine.remove_container(engine.client.containers.get(name))
        except LaunchError as error:
            log.warning("container_not_removed", name=name, reason=error.message)

    @contextlib.contextmanager
    def _asked(self) -> Iterator[Engine]:
        with self._connections.connect(self._timeout) as engine:
            try:
                yield engine
            except APIError as error:
                reason = one_line(str(error.explanation or "no reason given"))
                raise LaunchError(
                    "build-command-failed", f"The Docker Engine did not carry out a step: {reason}"
                ) from error
