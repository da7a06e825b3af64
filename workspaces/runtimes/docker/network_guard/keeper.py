"""Has the engine's machine hold to the rules, through a container in the network of that machine.

Workers need not be root, nor be on that machine. The container is ours, has NET_ADMIN and nothing
else, and writes the rules anew every few seconds. They are the kernel's: they hold while the
container or the engine is away, and workspaces are away with their engine.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import structlog
from docker.errors import APIError, BuildError, ContainerError, NotFound
from docker.models.containers import Container
from docker.types import LogConfig

from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.boot import one_line
from workspaces.runtimes.docker.engine_api import Engine
from workspaces.runtimes.docker.engine_api.own_containers import printed_by
from workspaces.runtimes.docker.network_guard.rules import GuardRules, resolvers_in
from workspaces.runtimes.docker.networks import BRIDGE_NAME, bridge_prefix, egress_prefix

GUARD_LABEL = "svc.network-guard"
RESOLVERS_PURPOSE = "resolvers"
ASK_RESOLVERS_SECONDS = 300.0
READY_SECONDS = 10.0
REDIRECT_SECONDS = 3.0
RECENT_SECONDS = 30.0
TICK_SECONDS = 0.2
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# SIGHUP has them written at once. SIGUSR1 takes them away. Any other end leaves them: the engine
# ends the container too when it is started again. What redirects may fail by itself.
_PROGRAM = """
trap : HUP
trap 'nft delete table ip "$TABLE"; nft delete table inet "$TABLE"; exit 0' USR1
while :; do
    printf '%s' "$RULES" | nft -f -
    printf '%s' "$REDIRECT" | nft -f -
    sleep 5 &
    wait $!
done
"""

log = structlog.get_logger(__name__)


class NetworkGuard:
    """Keeps the rules of one installation on the machine of one engine.

    ``image`` has nftables; empty: one is built from ``base_image``, which is of the Debian family.
    Safe to use from several threads and workers.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Engine]],
        instance_id: str,
        *,
        pool: IPv4Network,
        allowed: tuple[IPv4Network, ...] = (),
        image: str = "",
        base_image: str = "",
        egress_port: int = 0,
    ) -> None:
        self._connect = connect
        self._instance_id = instance_id
        self._pool = pool
        self._allowed = allowed
        self._image = image
        self._base_image = base_image
        self._egress_port = egress_port
        self._resolvers: tuple[IPv4Address, ...] = ()
        self._asked = float("-inf")
        self._held = float("-inf")
        self._not_redirected = ""
        self._lock = threading.Lock()

    @property
    def container_name(self) -> str:
        """The name of the container that keeps the rules."""
        return f"svc-networkguard-{self._instance_id}"

    def ensure(self) -> str:
        """Have the rules kept, and return a sentence that says what holds.

        Raises ``network-not-guarded`` when they do not hold, with the reason.
        """
        with self._lock, self._connect() as engine:
            self._hold(engine)
            return self._told(engine)

    def require(self) -> None:
        """Return when a new network is under the rules, as was seen in the last half minute.

        The first time it waits for the image. Raises ``network-not-guarded`` with the reason.
        """
        with self._lock:
            if time.monotonic() - self._held > RECENT_SECONDS:
                with self._connect() as engine:
                    self._hold(engine)

    def require_egress(self) -> None:
        """Return when the egress proxy listens where the rules send workspaces with a policy.

        Raises ``egress-not-enforced`` with the reason, ``network-not-guarded`` as :meth:`require`.
        """
        if not self._egress_port:
            raise LaunchError(
                "egress-not-enforced",
                "This installation enforces no egress policy: SVC_EGRESS_PORT is 0.",
            )
        self.require()
        with self._lock, self._connect() as engine:
            if self._not_redirected:
                raise LaunchError(
                    "egress-not-enforced",
                    "The kernel of the engine's machine does not redirect connections to the "
                    f"egress proxy: {self._not_redirected}",
                )
            container = engine.named(self.container_name)
            if container is None:
                raise _failed("the container that keeps the rules has gone")
            listening = _read_file(engine, container, "/proc/net/tcp")
        if not _listens(listening, self._egress_port):
            raise LaunchError(
                "egress-not-enforced",
                "The egress proxy is not running on the engine's machine (manage.py egressproxy, "
                f"port {self._egress_port}), so the workspace would reach nothing.",
            )

    def remove(self) -> None:
        """Take the rules away, and the container that kept them."""
        with self._lock, self._connect() as engine:
            self._held = float("-inf")
            container = engine.named(self.container_name)
            if container is None:
                return
            with suppress(NotFound, APIError):
                policy: Any = {"Name": "no"}  # unknown to the type stubs
                container.update(restart_policy=policy)
                container.kill(signal="SIGUSR1")
                container.wait(timeout=READY_SECONDS)
            engine.remove_container(container)

    def _hold(self, engine: Engine) -> None:
        """Have the rules kept, and remember when they were seen."""
        self._held = float("-inf")
        try:
            image = self._ready_image(engine)
            if time.monotonic() - self._asked > ASK_RESOLVERS_SECONDS:
                self._resolvers = self._ask_resolvers(engine, image)
                self._asked = time.monotonic()
            rules = self._rules()
            container = self._running(engine, image, rules)
            self._confirm(engine, rules, container)
            self._not_redirected = self._redirect_fault(engine, rules, container)
            # It sees what the machine reaches, so that no workspace gets such addresses.
            engine.routes.read(_read_file(engine, container, "/proc/net/route"))
        except APIError as error:
            # The rest of its text has the engine's address.
            raise _failed(str(error.explanation or "")) from error
        except (BuildError, ContainerError) as error:
            raise _failed(str(error)) from error
        self._held = time.monotonic()

    def _rules(self) -> GuardRules:
        return GuardRules(
            self._instance_id,
            self._pool,
            self._resolvers,
            self._allowed,
            egress_port=self._egress_port,
        )

    def _ready_image(self, engine: Engine) -> str:
        """Return an image with nftables; the first time it is built or pulled."""
        dockerfile = _dockerfile(self._base_image)
        name = self._image or f"svc-networkguard:{hashlib.sha256(dockerfile).hexdigest()[:16]}"
        if engine.has_image(name):
            return name
        if self._image:
            engine.client.images.pull(name)
            return name
        engine.client.images.build(
            fileobj=_tar_of(dockerfile),
            custom_context=True,
            tag=name,
            forcerm=True,
            labels={"svc.instance": self._instance_id},
        )
        log.info("network_guard_image_built", image=name)
        return name

    def _ask_resolvers(self, engine: Engine, image: str) -> tuple[IPv4Address, ...]:
        """Return the name servers that the engine gives containers; it asks them in their place."""
        try:
            told = self._read_resolv_conf(engine, image, network="bridge")
        except (APIError, ContainerError):
            told = self._read_resolv_conf(engine, image, network="host")  # no default bridge
        return resolvers_in(told)

    def _read_resolv_conf(self, engine: Engine, image: str, *, network: str) -> str:
        output = printed_by(
            engine,
            image,
            ["/etc/resolv.conf"],
            purpose=RESOLVERS_PURPOSE,
            entrypoint="cat",
            network_mode=network,
        )
        return output.decode(errors="replace")

    def _running(self, engine: Engine, image: str, rules: GuardRules) -> Container:
        """Return the container that keeps these rules, made anew if they or the image have changed.

        An image of an earlier release could not be removed while the container runs from it.
        """
        container = engine.named(self.container_name)
        if container is not None and (
            (container.labels or {}).get(GUARD_LABEL) != rules.digest
            or container.status != "running"
            or container.attrs["Image"] != engine.client.images.get(image).id
        ):
            engine.remove_container(container)
            container = None
        if container is not None:
            return container
        try:
            container = engine.client.containers.run(
                image,
                ["-c", _PROGRAM],
                entrypoint="/bin/sh",
                user="0:0",
                name=self.container_name,
                labels={"svc.instance": self._instance_id, GUARD_LABEL: rules.digest},
                environment={
                    "PATH": _PATH,
                    "TABLE": rules.table,
                    "RULES": rules.text(),
                    "REDIRECT": rules.redirect_text(),
                },
                network_mode="host",
                userns_mode="host",
                cap_drop=["ALL"],
                cap_add=["NET_ADMIN"],
                security_opt=["no-new-privileges"],
                read_only=True,
                mem_limit="64m",
                pids_limit=32,
                restart_policy={"Name": "always"},
                stop_signal="SIGKILL",
                detach=True,
                # What others keep cannot be read back from every engine.
                log_config=LogConfig(type=LogConfig.types.JSON),
                use_config_proxy=False,
            )
        except APIError as error:
            found = engine.named(self.container_name) if error.status_code == 409 else None
            if found is None:
                raise
            return found  # another worker was quicker
        log.info("network_guard_started", rules=rules.digest)
        return container

    def _confirm(self, engine: Engine, rules: GuardRules, container: Container) -> None:
        """Raise unless the kernel of the engine's machine has the rules."""
        deadline = time.monotonic() + READY_SECONDS
        while not rules.are_in(said := self._listed(engine, rules, container, "inet")):
            container.kill(signal="SIGHUP")
            if time.monotonic() > deadline:
                raise _failed(container.logs(tail=20).decode(errors="replace") or said)
            time.sleep(TICK_SECONDS)

    def _redirect_fault(self, engine: Engine, rules: GuardRules, container: Container) -> str:
        """Return why networks with a policy do not reach the egress proxy; empty when they do."""
        if not self._egress_port:
            return ""
        deadline = time.monotonic() + REDIRECT_SECONDS
        while not rules.redirect_in(said := self._listed(engine, rules, container, "ip")):
            container.kill(signal="SIGHUP")
            if time.monotonic() > deadline:
                told = container.logs(tail=20).decode(errors="replace") or said
                return one_line(told)[:500] or "no reason given"
            time.sleep(TICK_SECONDS)
        return ""

    def _listed(self, engine: Engine, rules: GuardRules, container: Container, family: str) -> str:
        """Return what the kernel has of a table; what nft says instead is no listing."""
        command = ["nft", "-j", "list", "table", family, rules.table]
        return engine.output_of(container, command).decode(errors="replace")

    def _told(self, engine: Engine) -> str:
        """Say what holds; raise when there are networks for which it does not."""
        prefixes = (bridge_prefix(self._instance_id), egress_prefix(self._instance_id))
        outside = sum(
            not str((network.attrs.get("Options") or {}).get(BRIDGE_NAME, "")).startswith(prefixes)
            for network in engine.networks()
        )
        if outside:
            raise LaunchError(
                "network-not-guarded",
                "Workspaces that an earlier version started without isolation: "
                f"{outside}. Stop and start them again.",
            )
        return "Workspaces cannot reach the engine's machine or private addresses."


def _failed(reason: str) -> LaunchError:
    return LaunchError(
        "network-not-guarded",
        "The engine's machine does not stop workspaces from reaching it: "
        f"{one_line(reason)[:500] or 'no reason given'}",
    )


def _read_file(engine: Engine, container: Container, path: str) -> str:
    return engine.output_of(container, ["cat", path]).decode(errors="replace")


def _listens(sockets: str, port: int) -> bool:
    """Tell whether ``/proc/net/tcp`` has a socket that listens at every address of the machine."""
    wanted = [f"00000000:{port:04X}", "0A"]
    return any([words[1], words[3]] == wanted for words in map(str.split, sockets.splitlines()[1:]))


def _dockerfile(base_image: str) -> bytes:
    return (
        f"FROM {base_image}\n"
        "RUN apt-get update -q && apt-get install -yq --no-install-recommends nftables"
        " && rm -rf /var/lib/apt/lists/*\n"
    ).encode()


def _tar_of(dockerfile: bytes) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(dockerfile)
        archive.addfile(member, io.BytesIO(dockerfile))
    buffer.seek(0)
    return buffer
