"""The way into the workspaces: connections to their ports, as channels of one stream each.

A workspace's stream is opened when somebody wants to go there, and closed when nobody has been
there for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import h11
import structlog

from controlplane.errors import JobError
from runs.gateway.control_plane import ControlPlane, ControlPlaneError, Refused
from runs.gateway.link import Channel, Link, LinkError
from runs.preview.admission import Place
from runs.preview.preview_settings import PreviewSettings
from runs.preview.refusal_pages import PreviewRefused
from workspaces.runtimes import boot
from workspaces.runtimes.docker.endpoints import open_endpoint

ENGINE_SECONDS = 45.0
READY_SECONDS = 75.0
CONNECT_SECONDS = 15.0
EMPTY_SECONDS = 60.0
"""How long a stream without any connection is kept."""
KEPT_SECONDS = 20.0
"""How long a connection to a server is kept for the next request."""
MOST_KEPT = 16

logger = structlog.get_logger(__name__)


class PortClosed(Exception):
    """The connection to the server in the workspace is gone."""


class PortConnection:
    """A connection to a port. One coroutine may read while another one writes."""

    def __init__(self) -> None:
        self.http = h11.Connection(h11.CLIENT)
        """What was said on it so far."""
        self.is_over = False
        """Whether the server takes nothing more."""
        self.used = False
        """Whether a request has been answered on it."""
        self._channel: Channel | None = None
        self._pieces: deque[bytes] = deque()
        self._ended = False
        loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[None] = loop.create_future()
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it could take another request: nothing has come, and nothing has ended."""
        return not (self._ended or self.is_over or self._pieces)

    def attach(self, channel: Channel) -> None:
        """Know the channel that it is."""
        self._channel = channel

    async def read(self, seconds: float) -> bytes:
        """Return what has come, ``b""`` at the end. Raises ``TimeoutError``."""
        if not self._pieces and not self._ended:
            self._readable = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(seconds):
                await self._readable
        if not self._pieces:
            return b""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._channel is not None:
            self._channel.consumed(len(data))
        return data

    async def write(self, data: bytes, seconds: float) -> None:
        """Send, and wait until more may come. Raises ``PortClosed`` and ``TimeoutError``."""
        if self.is_over or self._channel is None:
            raise PortClosed
        if self._channel.write(data):
            return
        while self._channel.full and not self.is_over:
            self._writable = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(seconds):
                await self._writable
        if self.is_over:
            raise PortClosed

    def write_eof(self) -> None:
        """Send nothing more."""
        if self._channel is not None:
            self._channel.write_eof()

    def close(self) -> None:
        """Hang up."""
        self.is_over = self._ended = True
        if self._channel is not None:
            self._channel.close()
        self._wake()

    # -------------------------------------------------------------------------- what the link calls

    def opened(self) -> None:
        """Know that the server has taken it."""
        if not self.answered.done():
            self.answered.set_result(None)

    def refused(self, code: str, message: str) -> None:
        """Know that nobody has."""
        self.is_over = self._ended = True
        if not self.answered.done():
            status = 503 if code in ("access-not-recorded", "too-many") else 502
            shown = code if code in ("access-not-recorded", "nothing-listens") else "connect-failed"
            self.answered.set_exception(PreviewRefused(status, shown, message))

    def output(self, data: bytes, *, error: bool) -> None:
        """Keep what has come; the window bounds how much that can be."""
        self._pieces.append(data)
        self._wake_reader()

    def output_ended(self) -> None:
        """Know that no more comes."""
        self._ended = True
        self._wake_reader()

    def exited(self, code: int | None, signal: str | None, reason: str) -> None:
        """Know that it is over."""
        self.is_over = self._ended = True
        self._wake()

    def may_write(self) -> None:
        """Let more be sent."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def lost(self) -> None:
        """Know that the workspace is gone, and this with it."""
        self.is_over = self._ended = True
        if not self.answered.done():
            self.answered.set_exception(_unreachable("its agent has ended"))
        self._wake()

    def _wake(self) -> None:
        self._wake_reader()
        self.may_write()

    def _wake_reader(self) -> None:
        if self._readable is not None and not self._readable.done():
            self._readable.set_result(None)


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
        self._kept: dict[int, list[PortConnection]] = {}
        self._open: set[PortConnection] = set()
        self._left_at = self._loop.time()

    @property
    def is_empty(self) -> bool:
        """Whether nobody has been here for a while."""
        if self._open or self._beginning is not None:
            return False
        return self._loop.time() - self._left_at >= EMPTY_SECONDS

    def kept(self, port: int) -> PortConnection | None:
        """Return a connection on which the last request has been answered, if there is one."""
        kept = self._kept.get(port, [])
        while kept:
            connection = kept.pop()
            if connection.is_idle:
                return connection
            self.discard(connection)
        return None

    async def connect(self, port: int, owner: str) -> PortConnection:
        """Return a new connection. Raises ``PreviewRefused``."""
        if len(self._open) >= self._settings.max_connections:
            self._drop_kept()
        if len(self._open) >= self._settings.max_connections:
            raise PreviewRefused(
                503,
                "preview-busy",
                f"{len(self._open)} connections to this workspace are open; try again.",
                retry=1,
            )
        connection = PortConnection()
        self._open.add(connection)
        try:
            link = await self._linked(owner)
            connection.attach(link.open({"port": port, "by": owner}, connection))
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.answered
        except LinkError as error:
            self.discard(connection)
            raise _unreachable(str(error)) from None
        except TimeoutError:
            self.discard(connection)
            raise _unreachable("its agent does not answer") from None
        except BaseException:
            self.discard(connection)
            raise
        return connection

    def keep(self, port: int, connection: PortConnection) -> None:
        """Keep a connection for the next request to the same port."""
        kept = self._kept.setdefault(port, [])
        if len(kept) >= MOST_KEPT:
            self.discard(connection)
            return
        kept.append(connection)
        self._loop.call_later(KEPT_SECONDS, self._let_go, port, connection)

    def discard(self, connection: PortConnection) -> None:
        """Close a connection."""
        connection.close()
        if connection.answered.done() and not connection.answered.cancelled():
            connection.answered.exception()
        self._open.discard(connection)
        self._left_at = self._loop.time()

    def close(self) -> None:
        """Leave the workspace."""
        for connection in list(self._open):
            self.discard(connection)
        if self._link is not None:
            self._link.close()

    def _let_go(self, port: int, connection: PortConnection) -> None:
        # One that was used meanwhile was kept again, and has a call of its own.
        kept = self._kept.get(port, [])
        if connection in kept:
            kept.remove(connection)
            self.discard(connection)

    def _drop_kept(self) -> None:
        for kept in self._kept.values():
            while kept:
                self.discard(kept.pop())

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
                detail = "There is no such workspace any more."
                raise PreviewRefused(404, "workspace-not-found", detail) from None
            status = 503 if error.code == "workspace-not-ready" else 502
            raise PreviewRefused(status, error.code, str(error), retry=5) from None
        except ControlPlaneError as error:
            raise _unreachable(str(error)) from None
        link = Link(self._log, lambda: None)
        try:
            stream = open_endpoint(
                target.endpoint,
                self._settings.docker_host,
                [boot.AGENT, "connect"],
                link,
                timeout=ENGINE_SECONDS,
            )
            await link.begin(stream, _spec(), timeout=READY_SECONDS)
        except JobError as error:
            raise _unreachable(error.message) from None
        except BaseException:
            link.close()
            raise
        self._log.info("workspace_entered")
        self._link = link
        return link


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
        """Leave the workspaces in which nobody has been for a while."""
        for workspace_id, ports in list(self._known.items()):
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


def _unreachable(why: str) -> PreviewRefused:
    detail = f"The workspace cannot be reached at the moment: {why.rstrip('.')}."
    return PreviewRefused(502, "workspace-unreachable", detail, retry=5)
