"""The way from a proven key to a ready session: target, run, exec, record.

What was prepared is released when the client goes away in between, and when something fails: the
agent is hung up on, and a run that was announced and not begun is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from controlplane.errors import JobError
from runs.gateway.channels import ENDED_BY_OTHERS
from runs.gateway.configuration import Configuration
from runs.gateway.control_plane import ControlPlane, ControlPlaneError, Principal, Refused, Target
from runs.gateway.link import Link, LinkError
from runs.gateway.texts import one_line
from workspaces.runtimes import boot
from workspaces.runtimes.agent_endpoints import open_endpoint
from workspaces.runtimes.agent_streams import AgentStream

ENGINE_SECONDS = 45.0
READY_SECONDS = 75.0
"""A machine on which dozens enter at once starts their agents one after the other: people rather
wait for their shell than be refused. One that answers nobody is still told within this time."""
LAST_QUESTION_SECONDS = 3.0
SPEC_VERSION = 2


class EntryRefused(Exception):
    """Nobody gets in; the message is one line for the person."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who wants to get in, and where."""

    principal: Principal
    workspace_id: str
    origin: dict[str, Any]


class Entry:
    """One visitor's session: prepared by ``prepare``, released by ``release``."""

    def __init__(
        self,
        configuration: Configuration,
        control_plane: ControlPlane,
        visitor: Visitor,
        log: structlog.stdlib.BoundLogger,
        ended: Callable[[], None],
    ) -> None:
        self.log = log
        self._configuration = configuration
        self._control_plane = control_plane
        self._visitor = visitor
        self._gone = False
        self._begun = False
        self._released = False
        self._stream: AgentStream | None = None
        self.run_id = ""
        self.link = Link(log, ended)

    async def prepare(self) -> None:
        """Have a recorded run and a session that takes channels. Raises ``EntryRefused``."""
        try:
            await self._prepare()
        except EntryRefused:
            raise
        except Refused as error:
            raise EntryRefused(_why_refused(error, self._visitor.workspace_id)) from error
        except ControlPlaneError as error:
            raise EntryRefused(str(error)) from error
        except JobError as error:
            raise EntryRefused(
                f"the workspace cannot be entered: {one_line(error.message)}"
            ) from error
        except LinkError as error:
            raise EntryRefused(str(error)) from error

    async def _prepare(self) -> None:
        api, visitor = self._control_plane, self._visitor
        target = await api.ssh_target(visitor.principal.id, visitor.workspace_id)
        self._check_gone()
        # The agent starts while the run is being announced; it does nothing without the spec.
        announcing = asyncio.ensure_future(self._announce(target))
        spec = self._spec(announcing)
        try:
            await self.link.begin(self._connect(target), spec, timeout=READY_SECONDS)
        finally:
            spec.close()  # nobody has waited for it when the engine refuses
            await asyncio.wait([announcing])
            if not announcing.cancelled():
                announcing.exception()
        self._check_gone()
        await self._report("running")
        self._begun = True
        self._check_gone()
        if self.link.is_over:
            # It has ended while the run was being reported, and nobody is told of that again.
            raise EntryRefused(await self.why_ended())

    async def _announce(self, target: Target) -> str:
        recorded = self._configuration.recorded
        try:
            self.run_id = await self._control_plane.create_run(
                self._visitor.principal.id, target, recorded=recorded
            )
        except ControlPlaneError as error:
            done = "recorded" if recorded else "begun"
            raise EntryRefused(f"the session cannot be {done}: {error}") from error
        self.log = self.link.log = self.log.bind(run_id=self.run_id)
        return self.run_id

    async def _connect(self, target: Target) -> AgentStream:
        self._stream = await open_endpoint(
            target.endpoint,
            self._configuration.docker_host,
            [boot.AGENT, "session"],
            self.link,
            timeout=ENGINE_SECONDS,
            engines=self._configuration.engines,
        )
        return self._stream

    async def _spec(self, announcing: asyncio.Future[str]) -> dict[str, Any]:
        run_id = await announcing
        self._check_gone()
        return {
            "version": SPEC_VERSION,
            "runId": run_id,
            "mode": "interactive",
            "env": {},
            "cwd": None,
            "graceSeconds": self._configuration.disconnect_grace,
            "secrets": [],
            "record": self._configuration.record if self._configuration.recorded else None,
            "origin": self._visitor.origin,
        }

    async def _report(self, status: str) -> None:
        await self._control_plane.report_run(
            self._visitor.principal.id,
            self.run_id,
            status,
        )

    def _check_gone(self) -> None:
        if self._gone:
            raise EntryRefused("the client has disconnected")

    def leave(self) -> None:
        """Know that the client is gone: hang up."""
        self._gone = True
        self.link.close("the client has disconnected")

    async def release(self) -> None:
        """Hang up, and leave no run behind that would never end. Raises nothing."""
        self.link.close()
        if self._stream is not None and self._stream.errors():
            self.log.info("agent_said", tail=one_line(self._stream.errors()[-300:]))
        if self._released or not self.run_id:
            return
        self._released = True
        try:
            if not self._begun:
                await self._report("cancelled")
            elif not self._configuration.recorded:
                await self._report("completed")
        except ControlPlaneError as error:
            self.log.warning("run_not_released", reason=str(error))

    async def why_ended(self) -> str:
        """Return why a session has ended from its own side, as a line for the person."""
        if self.link.failure:
            return self.link.failure
        if (
            self._stream is None
            or await self._stream.container_runs(LAST_QUESTION_SECONDS) is False
        ):
            return "the workspace's container ended"
        try:
            async with asyncio.timeout(LAST_QUESTION_SECONDS):
                api = self._control_plane
                status = await api.run_status(self._visitor.principal.id, self.run_id)
        except (ControlPlaneError, TimeoutError):
            status = ""
        reason = "cancelled" if status == "cancelled" else self.link.last_reason
        if reason in ENDED_BY_OTHERS:
            return ENDED_BY_OTHERS[reason]
        return "the session in the workspace ended"


def _why_refused(error: Refused, workspace_id: str) -> str:
    if error.status == 404:
        return f"you have no workspace {workspace_id}; `svc ls` lists yours with their ids"
    if error.code == "workspace-not-ready":
        return f"the workspace cannot be entered now: {error}"
    return f"the control plane refuses: {error}"
