"""One launch: from an image digest to a container whose agent says that the workspace is ready.

It makes one container named ``svc-<run id>``, with no published port, few capabilities, and limits
on memory, CPU, processes and logs; and, when the workspace may reach the outside, one bridge
network of its own. All carry the labels in ``creation``.

**Two launches of one run at once** (a worker whose lease was taken wakes up beside its successor)
end with one live container. The engine gives a container's name to one only, and ``attempt_count``
says who yields: a lower one raises ``launch-superseded``. Labels of a live container cannot be
changed, so whoever adopts it leaves a marker file inside. Before anybody removes a container that
it launched or adopted, it renames it away and then reads the markers; an adopter writes its marker
and then checks that the name is still there. Whichever comes second sees the other, so a container
that a newer launch relies on is never removed by an older one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID, uuid4

import structlog
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.types import Mount

from controlplane.errors import JobError
from workspaces.runtimes import boot
from workspaces.runtimes.base import FileReader, LaunchedRuntime, LaunchError, LaunchRequest
from workspaces.runtimes.docker import volumes
from workspaces.runtimes.docker.agent_talk import AgentTalk, LaunchProgress
from workspaces.runtimes.docker.creation import (
    NetworkInTheMaking,
    create_container,
    image_digest,
    labels_for,
)
from workspaces.runtimes.docker.engine_api import (
    TICK_SECONDS,
    Engine,
    container_name,
    engine_errors,
    is_of_a_launch,
    labels_of,
    launched_as,
    refused,
)
from workspaces.runtimes.docker.exec_channel import ExecChannel
from workspaces.runtimes.docker.networks import new_bridge_name
from workspaces.runtimes.docker.pulling import pull
from workspaces.runtimes.docker.trust import trust

ENGINES_OWN_RUNTIME = "runc"
"""Every engine has this one, so that the engine is looked at while the workspace boots."""
UNSTARTED_SECONDS = 10.0
NAME_SECONDS = 30.0
"""An engine may refuse a name, or volumes, for so long without showing the container that has them:
one launch is creating it, or another one is removing it."""
MOST_BETWEEN = 2.0
ROUNDS = 8

logger = structlog.get_logger(__name__)


class Launch:
    """The steps of one launch, with its deadline and the token it signs its markers with."""

    def __init__(
        self,
        engine: Engine,
        request: LaunchRequest,
        cancelled: threading.Event,
        *,
        pool: ipaddress.IPv4Network,
        registry_auth: Mapping[str, str] | None,
        connect: Callable[[], AbstractContextManager[Engine]],
        silence: float,
        reader: Callable[[Engine, Container], FileReader],
        open_agent: Callable[[Engine, Container, Sequence[str], float], ExecChannel],
        calls_directly: bool,
        engine_name: str = "",
    ) -> None:
        self._engine = engine
        self._request = request
        self._cancelled = cancelled
        self._pool = pool
        self._registry_auth = registry_auth
        self._connect = connect
        self._reader = reader
        self._place = f"{engine_name}/" if engine_name else ""
        self._name = container_name(request.run_id)
        self._token = uuid4().hex
        self._progress = LaunchProgress(cancelled, request.timeout)
        self._agent = AgentTalk(
            engine,
            request,
            self._progress,
            marker=f"{request.attempt_count}-{self._token}",
            silence=silence,
            open_agent=open_agent,
            calls_directly=calls_directly,
        )
        self._created: set[str] = set()
        self._engine_id = ""
        self._said: boot.BootStatus | None = None

    def run(self) -> LaunchedRuntime:
        """Take, create or adopt until one container is ready, in a bounded number of rounds."""
        taken = self._take_member()
        if taken is None:
            if self._request.oci_runtime != ENGINES_OWN_RUNTIME:
                self._look_at_engine()
            self._pull()
        # Where nobody has launched it before, the engine's refusal of the name would say otherwise.
        may_be_there = self._request.attempt_count > 1
        for _ in range(ROUNDS):
            container = taken or self._adopt_or_create(may_be_there=may_be_there)
            may_be_there = True
            try:
                with contextlib.suppress(NotFound):
                    ours = container.id in self._created
                    if self._said is None or self._said.phase != "ready":
                        self._request.on_started()
                    if not self._engine_id:
                        self._look_at_engine()
                    answer = self._agent.deliver(container) if ours and not taken else self._said
                    return self._ready(container, answer)
            except BaseException as error:
                self._clean_up(container, in_order=isinstance(error, JobError))
                raise
            # It was removed while we waited. If it was ours, by a newer launch or by a person.
            if container.id in self._created:
                raise self._displaced()
        raise _name_refused()

    def _adopt_or_create(self, *, may_be_there: bool) -> Container:
        """Return a container to go on with, as soon as the engine gives its name to one."""
        until, pause = 0.0, TICK_SECONDS
        while True:
            refusal = _name_refused()
            try:
                container = (self._adoptable() if may_be_there else None) or self._create()
                if container is not None:
                    return container
            except LaunchError as error:
                if error.code != "volume-in-use":
                    raise
                refusal = error
            may_be_there = True
            now = time.monotonic()
            until = until or now + NAME_SECONDS
            if now >= until:
                raise refusal
            time.sleep(pause)
            pause = min(2 * pause, MOST_BETWEEN)

    # --------------------------------------------------------------------------- out of the pool

    def _take_member(self) -> Container | None:
        """Make the claimed member of the warm pool this run's container.

        None when there is none, or when it cannot be: it has ended, does not answer, or the run
        has a container already. What is taken is this run's alone from the moment of its new name,
        which the engine gives to one only; then it is adopted as any container is: marker first,
        name after it.
        """
        member = self._request.member
        if member is None:
            return None
        self._progress.doing = "a container that was waiting for it was being taken"
        container = self._engine.named(container_name(member.member_id))
        if container is None or container.status != "running":
            return None
        try:
            # By its name: what is another run's already is not found by it any more.
            self._engine.client.api.rename(container_name(member.member_id), self._name)
        except APIError as error:
            logger.info("warm_member_not_taken", run=self._name, reason=str(error.explanation))
            return None
        try:
            self._said = self._agent.bind(container)
        except (LaunchError, APIError) as error:
            logger.warning("warm_member_not_taken", run=self._name, reason=str(error))
            # One that has not refused may be bound all the same, and have run steps.
            refused_it = isinstance(error, LaunchError) and error.code == "launch-refused"
            self._clean_up(container, empty=refused_it)
            self._progress.proceed()
            return None
        named = self._engine.named(self._name)
        if named is None or named.id != container.id:
            return None
        self._engine_id = member.engine_id
        self._created.add(str(container.id))
        return container

    # ----------------------------------------------------------------- before there is a container

    def _look_at_engine(self) -> None:
        """Learn the engine's id, and raise unless it has the OCI runtime that is wanted."""
        wanted = self._request.oci_runtime
        info = self._engine.client.info()
        self._engine_id = str(info.get("ID") or "")
        if wanted not in (info.get("Runtimes") or {}):
            raise LaunchError(
                "oci-runtime-missing",
                f"The Docker Engine has no OCI runtime “{wanted}”; the operator has to install it.",
            )

    def _pull(self) -> None:
        """Pull the image unless the engine has it, until the deadline or until cancelled."""
        image = self._request.image
        if not self._engine.has_image(image):
            self._progress.doing = "its image was being pulled"
            pull(
                image,
                name=f"pull for {self._name}",
                connect=self._connect,
                auth=self._registry_auth,
                proceed=self._progress.proceed,
            )

    # ------------------------------------------------------------------------------------ adopting

    def _adoptable(self) -> Container | None:
        """Return an earlier launch's container to go on with, or make way for a new one.

        Raises ``launch-superseded`` when a newer launch owns it.
        """
        unstarted: tuple[str | None, float] = (None, 0.0)
        while (container := self._engine.named(self._name)) is not None:
            self._progress.proceed()
            if not is_of_a_launch(container, self._engine.instance_id):
                raise LaunchError(
                    "launch-refused",
                    "A container of another program has the workspace's name.",
                )
            count = self._request.attempt_count
            creator = int(labels_of(container).get("svc.attempt-count", "0"))
            if max([creator, *(marked for marked, _ in self._markers(container))]) > count:
                raise _superseded()
            if container.status == "created" and creator == count:
                # The same claim twice: the other one is about to start it, or it has died.
                if unstarted[0] != container.id:
                    unstarted = (container.id, time.monotonic())
                if time.monotonic() - unstarted[1] < UNSTARTED_SECONDS:
                    time.sleep(TICK_SECONDS)
                    continue
            image = container.attrs["Config"]["Image"]
            same_image = image_digest(image) == image_digest(self._request.image)
            if container.status == "running" and same_image:
                if self._adopt(container):
                    return container
                time.sleep(TICK_SECONDS)
            elif not self._discard(container):
                raise _superseded()
        return None

    def _adopt(self, container: Container) -> bool:
        """Leave our marker in the container; False when it is being discarded meanwhile."""
        marker = f"{self._request.attempt_count}-{self._token}"
        try:
            container.put_archive("/", boot.marker_archive(marker))
        except APIError as error:
            if isinstance(error, NotFound) or self._is_going(container):
                return False
            raise
        named = self._engine.named(self._name)
        return named is not None and named.id == container.id

    def _markers(self, container: Container) -> list[tuple[int, str]]:
        """Return attempt count and token of every launch that has adopted the container."""
        try:
            chunks, _ = container.get_archive(boot.MARKER_DIRECTORY)
        except APIError as error:
            if isinstance(error, NotFound) or self._is_going(container):
                return []
            raise
        return boot.archived_markers(chunks)

    def _is_going(self, container: Container) -> bool:
        """Tell whether it is being removed; the engine then fails to reach its files."""
        try:
            container.reload()
        except NotFound:
            return True
        return container.status in ("removing", "dead")

    def _discard(
        self, container: Container, *, in_order: bool = False, empty: bool = False
    ) -> bool:
        """Remove a container and its network; False when a launch of our rank or above has it.

        ``empty``: it has refused to be bound, so that there is nothing in it.
        """
        try:
            if self._request.before_discard is not None and not empty:
                container.reload()
                if container.status == "running":
                    self._request.before_discard()
            container.rename(f"{self._name}-discarded-{self._token[:8]}")
            container.reload()
            relied_on = any(
                count >= self._request.attempt_count and token != self._token
                for count, token in self._markers(container)
            )
            if relied_on and container.status == "running":
                container.rename(self._name)
                return False
        except APIError as error:
            # 404: it is gone. 409: it is being removed; or its name has a new owner and its
            # adopter, who found the name missing, has let go of it.
            if error.status_code not in (404, 409):
                raise
        if not empty:
            self._collect(container, in_order=in_order)
        self._engine.remove_container(container)
        self._remove_network(container.attrs["HostConfig"]["NetworkMode"], launched_as(container))
        return True

    def _remove_network(self, mode: str, run_id: UUID) -> None:
        for network in self._engine.networks(run_id):
            if mode in (network.name, network.id):
                self._engine.remove_network(network)

    def _clean_up(
        self, container: Container, *, in_order: bool = False, empty: bool = False
    ) -> None:
        """Discard after a failure without hiding it: what stays behind is found by its labels."""
        try:
            with engine_errors():
                self._discard(container, in_order=in_order, empty=empty)
        except LaunchError as error:
            logger.warning("container_left_behind", container=self._name, reason=error.message)

    def _collect(self, container: Container, *, in_order: bool) -> None:
        """Let the caller take out of a container what must outlive it.

        When the run goes on elsewhere (another worker will launch it) the agent is killed instead
        of stopped: it would end the run's record.
        """
        if self._request.collect is None or container.id is None:
            return
        if in_order and not self._cancelled.is_set():
            self._engine.stop_container(container)
        else:
            self._engine.kill_container(container)
        self._request.collect(self._reader(self._engine, container))

    def _displaced(self) -> LaunchError:
        """Return the error for a container of ours that went away before it was ready."""
        if self._engine.named(self._name) is not None:
            return _superseded()
        return LaunchError(
            "container-exited", "The container was removed while the workspace was starting."
        )

    # ------------------------------------------------------------------------------------ creating

    def _create(self) -> Container | None:
        """Return a started container of our own; None when another launch took the name."""
        self._progress.proceed()
        self._progress.doing = "its container was being created"
        mounts = volumes.prepare(
            self._engine,
            self._request.workspace_id,
            self._request.volumes,
            before_removal=self._request.before_removal if self._request.fresh_volumes else None,
        )
        network = self._begin_network() if self._request.outbound else None
        try:
            container = self._create_container(network, mounts)
        except BaseException as error:
            if network is not None:
                network.settle()
                with contextlib.suppress(LaunchError), engine_errors():
                    self._remove_network(network.name, self._request.run_id)
            if isinstance(error, APIError):
                if error.status_code == 409:
                    return None
                if "no such container" in str(error.explanation).lower():
                    raise self._displaced() from error
                raise refused(error) from error
            raise
        self._created.add(str(container.id))
        try:
            container.put_archive("/", boot.config_archive(self._request.boot))
            if self._request.authority is not None:
                trust(container, self._request.authority)
            if network is not None:
                network.made()
            self._progress.proceed()
            container.start()
        except BaseException as error:
            if network is not None:
                network.settle()  # so that it is found
            named = self._engine.named(self._name) if isinstance(error, APIError) else container
            self._clean_up(container)
            if named is None or named.id != container.id:
                raise self._displaced() from error
            if isinstance(error, APIError):
                raise refused(error) from error
            raise
        return container

    def _create_container(
        self, network: NetworkInTheMaking | None, mounts: Sequence[Mount]
    ) -> Container:
        name = network.name if network else None
        try:
            return create_container(self._engine, self._request, name, mounts)
        except NotFound as error:
            # An engine may want to see the network first, though none that we know does.
            if network is None or "network" not in str(error.explanation).lower():
                raise
        network.made()
        return create_container(self._engine, self._request, name, mounts)

    def _begin_network(self) -> NetworkInTheMaking:
        # Each launch has its own, because each removes its own and newer engines refuse a second
        # network of the same name.
        name = f"{self._name}-{self._token[:8]}"
        labels = labels_for(self._request)
        start = self._request.run_id.int
        bridge = new_bridge_name(self._engine.instance_id, egress=self._request.egress is not None)
        if self._request.egress is not None:
            self._request.egress(bridge)
        return NetworkInTheMaking(
            name, labels, self._connect, pool=self._pool, start=start, bridge=bridge
        )

    # -------------------------------------------------------------------------- once it is ready

    def _ready(self, container: Container, answer: boot.BootStatus | None) -> LaunchedRuntime:
        """Wait until the agent says ready; raises ``NotFound`` when the container goes away.

        ``answer`` is what it has said already.
        """
        self._agent.wait_ready(container, answer)
        if self._request.restart:
            policy: Any = {"Name": "unless-stopped"}  # unknown to the type stubs
            container.update(restart_policy=policy)
        member_was_left = self._request.member is not None and self._said is None
        if self._request.attempt_count > 1 or member_was_left:
            self._remove_others(container)
        return LaunchedRuntime(
            adapter="docker",
            resource_id=str(container.id),
            reference=self._name,
            endpoint=f"docker-exec://{self._place}{container.id}",
            engine_id=self._engine_id,
        )

    def _remove_others(self, ready: Container) -> None:
        """Remove what a launch that died while discarding left of this run."""
        for container in self._engine.containers(self._request.run_id):
            if container.id != ready.id and f"/{self._name}" not in (
                container.attrs["Names"] or ()
            ):
                self._engine.remove_container(container)


def _name_refused() -> LaunchError:
    return LaunchError("launch-refused", "Other launches of the workspace kept taking its name.")


def _superseded() -> LaunchError:
    return LaunchError("launch-superseded", "A newer launch of the workspace has taken over.")
