"""What a workspace's container is allowed, and how it is recognised later."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from ipaddress import IPv4Network
from typing import Any

from docker.models.containers import Container
from docker.types import LogConfig, Mount

from workspaces.runtimes import credentials
from workspaces.runtimes.base import LaunchRequest
from workspaces.runtimes.docker import seccomp
from workspaces.runtimes.docker.engine_api import WARM_LABEL, Engine, container_name

AGENT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
"""What the agent needs as root: to own files for the user, to become the user, to end processes."""
ASKED_NAME_SERVER = "192.0.2.53"
"""What workspaces with a policy ask: an address that nobody has (RFC 5737)."""
SUDO_CAPABILITIES = ("AUDIT_WRITE", "SYS_CHROOT")
"""What else sudo and package managers use. NET_RAW and SETFCAP stay out together: without the
second, packages such as ping install themselves so that they work without the first."""


class NetworkInTheMaking:
    """A network that is being created while other things are done.

    ``connect`` opens a connection of its own for it. Each is to be settled, whatever happens.
    """

    def __init__(
        self,
        name: str,
        labels: Mapping[str, str],
        connect: Callable[[], AbstractContextManager[Engine]],
        *,
        pool: IPv4Network,
        start: int,
        bridge: str = "",
    ) -> None:
        self.name = name
        self._error: BaseException | None = None

        def create() -> None:
            try:
                with connect() as engine:
                    engine.create_network(name, labels, pool=pool, start=start, bridge=bridge)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=create, name=f"network {name}")
        self._thread.start()

    def settle(self) -> None:
        """Wait until it is there or has failed; the engine's time limit is that of this too."""
        self._thread.join()

    def made(self) -> None:
        """Wait until it is there; raise what its creation raised."""
        self.settle()
        if self._error is not None:
            raise self._error


def create_container(
    engine: Engine, request: LaunchRequest, network: str | None, mounts: Sequence[Mount] = ()
) -> Container:
    """Create the container of a launch; without a ``network`` it reaches nothing but itself.

    The network of that name has to be there when the container is started.
    """
    hostname = f"ws-{request.workspace_id.hex[-8:]}"
    return engine.client.containers.create(
        request.image,
        name=container_name(request.run_id),
        hostname=hostname,
        labels=labels_for(request),
        mounts=list(mounts),
        network=network,
        network_mode=None if network else "none",
        # Without a network nobody answers for the host's own name, and sudo would complain.
        extra_hosts=None if network else {hostname: "127.0.1.1"},
        tmpfs={credentials.DIRECTORY: credentials.MEMORY}
        if request.credentials or request.unbound
        else None,
        **fixed_options(request),
    )


def fixed_options(request: LaunchRequest) -> dict[str, Any]:
    """Return what a container is created with, whoever it is for, and keeps for its life."""
    memory = f"{request.memory_mb}m"
    return dict(  # noqa: C408 - they are keywords of the SDK
        # All that is asked of name servers is answered by the egress proxy, whatever they are.
        dns=[ASKED_NAME_SERVER] if request.egress else None,
        tty=False,
        stdin_open=False,
        init=False,  # the agent is process 1 and reaps
        cap_drop=["ALL"],
        cap_add=[*AGENT_CAPABILITIES, *(SUDO_CAPABILITIES if request.sudo else ())],
        security_opt=[
            f"seccomp={seccomp.profile()}",
            # sudo is a setuid program, and this option makes the kernel ignore setuid.
            *([] if request.sudo else ["no-new-privileges"]),
        ],
        mem_limit=memory,
        memswap_limit=memory,  # equal: no swap on top
        nano_cpus=int(request.cpus * 1e9),
        pids_limit=request.pids,
        log_config=LogConfig(
            type=LogConfig.types.JSON, config={"max-size": "10m", "max-file": "2"}
        ),
        runtime=request.oci_runtime,
        stop_signal="SIGTERM",
        use_config_proxy=False,  # nothing of the operator's own Docker settings gets in
        # Left out on purpose: a restart policy, because a boot that fails must stay failed (the
        # launch sets it once it is ready); and the working directory, because the engine would
        # create a missing one for root, whereas the agent creates it for the user.
    )


def warm_key(request: LaunchRequest) -> str:
    """Return what a container of the warm pool has in common with those that this run could take.

    Everything that cannot be changed once it exists: its image, by digest and whatever the
    repository is called, its options, and whether it has a network.
    """
    fixed = {
        "image": image_digest(request.image),
        "outbound": request.outbound,
        **fixed_options(request),
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True, default=str).encode()).hexdigest()


def image_digest(reference: str) -> str:
    """Return the digest of a digest reference; images of the same digest are the same."""
    return reference.rpartition("@")[2]


def labels_for(request: LaunchRequest) -> dict[str, str]:
    """Return the labels of everything that a launch creates."""
    return {
        **({WARM_LABEL: "true"} if request.unbound else {}),
        "svc.instance": request.instance_id,
        "svc.workspace": str(request.workspace_id),
        "svc.attempt": str(request.attempt_id),
        "svc.run": str(request.run_id),
        "svc.job": str(request.job_id),
        "svc.attempt-count": str(request.attempt_count),
        "svc.working-directory": request.working_directory,
    }
