"""The way into the workspaces: connections to their ports, as channels of one stream each.

A workspace's stream is opened when somebody wants to go there, and closed when nobody has been
there for a while.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import structlog

from controlplane.errors import JobError
from runs.gateway.control_plane import ControlPlane, ControlPlaneError, Refused
from runs.gateway.link import Link, LinkError
from runs.preview.admission import Place
from runs.preview.preview_settings import PreviewSettings
from runs.preview.refusal_pages import PreviewRefused
from runs.preview.server_connection import (
    DirectConnection,
    RelayedConnection,
    ServerConnection,
    unreachable,
)
from workspaces.runtimes import boot
from workspaces.runtimes.agent_endpoints import PODS, open_endpoint
from workspaces.runtimes.docker.endpoints import first_process
from workspaces.runtimes.docker.inside_network import NoWayInside, connect_inside
from workspaces.runtimes.docker.remote.engine_folders import place_of

ENGINE_SECONDS = 45.0
READY_SECONDS = 75.0
CONNECT_SECONDS = 15.0
EMPTY_SECONDS = 60.0
"""How long a stream without any connection is kept."""
KEPT_SECONDS = 20.0
"""How long a connection to a server is kept for the next request."""
MOST_KEPT = 16

logger = structlog.get_logger(__name__)


class WorkspacePorts:
    """The ports of one workspace, through one call of its agent."""

    def __init__(
        self, settings: PreviewSettings, control_plane: ControlPlane, workspace_id: str
    ) -> None:
        self._settings = settings
        self._control_plane = control_plane
        self._workspace_id = workspace_id
        self._log = logger.bind(workspace=workspace_id)
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._beginning: asyncio.Task[Link] | None = None
        self._kept: dict[int, list[tuple[ServerConnection, float]]] = {}
        """Connections that wait for another request, and since when; the last one is used first."""
        self._open: set[ServerConnection] = set()
        self._connecting = 0
        self._pid: int | None = None
        """The first process of the workspace, where its network can be entered."""
        self._container_id = ""
        self._left_at = self._loop.time()

    @property
    def _count(self) -> int:
        return len(self._open) + self._connecting

    @property
    def is_empty(self) -> bool:
        """Whether nobody has been here for a while."""
        if self._open or self._connecting or self._beginning is not None:
            return False
        return self._loop.time() - self._left_at >= EMPTY_SECONDS

    def kept(self, port: int) -> ServerConnection | None:
        """Return a connection on which the last request has been answered, if there is one."""
        kept = self._kept.get(port, [])
        while kept:
            connection, _ = kept.pop()
            connection.on_end = None
            if connection.is_idle:
                return connection
            self.discard(connection)
        return None

    async def connect(self, port: int, owner: str) -> ServerConnection:
        """Return a new connection. Raises ``PreviewRefused``."""
        if self._count >= self._settings.max_connections:
            self._drop_kept()
        if self._count >= self._settings.max_connections:
            raise PreviewRefused(
                503,
                "preview-busy",
                f"{self._count} connections to this workspace are open; try again.",
                retry=1,
            )
        self._connecting += 1
        try:
            link = await self._linked(owner)
            connection: ServerConnection | None = None
            if self._pid is not None:
                connection = await self._directly(link, port, owner)
            if connection is None:
                connection = await self._relayed(link, port, owner)
        except LinkError as error:
            raise unreachable(str(error)) from None
        finally:
            self._connecting -= 1
            self._left_at = self._loop.time()
        self._open.add(connection)
        return connection

    async def _relayed(self, link: Link, port: int, owner: str) -> ServerConnection:
        connection = RelayedConnection()
        await self._asked(link, {"port": port, "by": owner}, connection)
        return connection

    async def _directly(self, link: Link, port: int, owner: str) -> ServerConnection | None:
        """Connect without the agent, which records it; None when that cannot be done from here."""
        assert self._pid is not None
        connection = DirectConnection()
        await self._asked(link, {"port": port, "by": owner, "direct": True}, connection)
        try:
            sock = await connect_inside(
                self._pid,
                self._container_id,
                connection.addresses,
                port,
                timeout=CONNECT_SECONDS,
            )
            await self._loop.create_connection(lambda: connection, sock=sock)
        except NoWayInside as error:
            self._log.info("workspace_network_not_entered", reason=str(error))
            self._pid = None
            connection.close()
            return None
        except (OSError, TimeoutError) as error:
            connection.close()
            slow = isinstance(error, TimeoutError)
            why = "it takes too long to answer" if slow else error.strerror or str(error)
            detail = f"The server on port {port} does not accept the connection: {why}."
            raise PreviewRefused(502, "connect-failed", detail) from None
        except BaseException:
            connection.close()
            raise
        if connection.is_over:
            # Nobody records it any more: the link has ended meanwhile.
            connection.close()
            raise unreachable("its agent has ended")
        return connection

    async def _asked(
        self, link: Link, request: dict[str, Any], user: RelayedConnection | DirectConnection
    ) -> None:
        """Have the agent open a channel, and wait until it has. Raises ``PreviewRefused``."""
        user.attach(link.open(request, user))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await user.answered
        except TimeoutError:
            user.close()
            raise unreachable("its agent does not answer") from None
        except BaseException:
            user.close()
            raise

    def keep(self, port: int, connection: ServerConnection) -> None:
        """Keep a connection for the next request to the same port."""
        kept = self._kept.setdefault(port, [])
        if len(kept) >= MOST_KEPT:
            self.discard(connection)
            return
        kept.append((connection, self._loop.time()))
        connection.on_end = lambda: self.discard(connection)

    def discard(self, connection: ServerConnection) -> None:
        """Close a connection."""
        connection.on_end = None
        connection.close()
        self._open.discard(connection)
        self._left_at = self._loop.time()

    def report(self) -> None:
        """Have the record know how much has gone over the connections so far."""
        for connection in self._open:
            connection.report()

    def close(self) -> None:
        """Leave the workspace."""
        for connection in list(self._open):
            self.discard(connection)
        if self._link is not None:
            self._link.close()

    def drop_unused(self) -> None:
        """Close connections that have waited for another request for long."""
        until = self._loop.time() - KEPT_SECONDS
        for port, kept in list(self._kept.items()):
            unused = [connection for connection, since in kept if since <= until]
            kept[:] = [each for each in kept if each[1] > until]
            if not kept:
                del self._kept[port]
            for connection in unused:
                self.discard(connection)

    def _drop_kept(self) -> None:
        for kept in self._kept.values():
            while kept:
                self.discard(kept.pop()[0])

    async def _linked(self, owner: str) -> Link:
        if self._link is not None and not self._link.is_over:
            return self._link
        if self._beginning is None:
            self._beginning = self._loop.create_task(self._begin(owner))
            self._beginning.add_done_callback(self._begun)
        # Who goes away does not end what others wait for.
        return await asyncio.shield(self._beginning)

    def _begun(self, task: asyncio.Task[Link]) -> None:
        self._beginning = None
        if not task.cancelled():
            task.exception()

    async def _begin(self, owner: str) -> Link:
        try:
            target = await self._control_plane.ssh_target(owner, self._workspace_id)
        except Refused as error:
            if error.status == 404:
                detail = "The workspace no longer exists."
                raise PreviewRefused(404, "workspace-not-found", detail) from None
            status = 503 if error.code == "workspace-not-ready" else 502
            raise PreviewRefused(status, error.code, str(error), retry=5) from None
        except ControlPlaneError as error:
            raise unreachable(str(error)) from None
        link = Link(self._log, lambda: None)
        try:
            stream = open_endpoint(
                target.endpoint,
                self._settings.docker_host,
                [boot.AGENT, "connect"],
                link,
                timeout=ENGINE_SECONDS,
                engines=self._settings.engines,
            )
            await link.begin(stream, _spec(), timeout=READY_SECONDS)
            self._pid = await self._process_to_enter(target.endpoint, link)
        except JobError as error:
            link.close()
            raise unreachable(error.message) from None
        except BaseException:
            link.close()
            raise
        self._log.info("workspace_entered", direct=self._pid is not None)
        self._link = link
        return link

    async def _process_to_enter(self, endpoint: str, link: Link) -> int | None:
        """Return the first process of a container; None where only the agent can connect."""
        if not _takes_direct(link.told) or endpoint.startswith(f"{PODS}://"):
            return None
        docker_host, self._container_id = place_of(
            endpoint, self._settings.docker_host, self._settings.engines
        )
        return await first_process(self._container_id, docker_host, ENGINE_SECONDS)


class Workspaces:
    """The workspaces that somebody is in."""

    def __init__(self, settings: PreviewSettings) -> None:
        self._settings = settings
        self._control_plane = ControlPlane(settings.api_base_url, settings.token)
        self._known: dict[str, WorkspacePorts] = {}

    def of(self, place: Place) -> WorkspacePorts:
        """Return the ports of a place's workspace."""
        found = self._known.get(place.workspace_id)
        if found is None:
            found = WorkspacePorts(self._settings, self._control_plane, place.workspace_id)
            self._known[place.workspace_id] = found
        return found

    def leave_empty(self) -> None:
        """Leave the workspaces in which nobody has been for a while; report of the others."""
        for workspace_id, ports in list(self._known.items()):
            ports.drop_unused()
            ports.report()
            if ports.is_empty:
                del self._known[workspace_id]
                ports.close()

    def close(self) -> None:
        """Leave all of them."""
        for ports in self._known.values():
            ports.close()
        self._known.clear()
        self._control_plane.close()


async def _spec() -> dict[str, Any]:
    return {}


def _takes_direct(told: bytes) -> bool:
    """Tell whether the agent records connections that it does not make itself."""
    try:
        return json.loads(told).get("direct") is True
    except (ValueError, AttributeError, RecursionError):
        return False
