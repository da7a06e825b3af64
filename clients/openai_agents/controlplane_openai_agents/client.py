"""Where sandboxes of agents begin: new workspaces, and those of sessions that go on."""

from __future__ import annotations

import uuid

from agents.sandbox.manifest import Manifest
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sandbox_client import BaseSandboxClient
from agents.sandbox.session.sandbox_session import SandboxSession
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

from controlplane_client import (
    AsyncClient,
    AsyncWorkspace,
    ControlPlaneError,
    NotFound,
    WorkspaceInfo,
)
from controlplane_openai_agents.failures import start_failed
from controlplane_openai_agents.session import ControlPlaneSandboxSession
from controlplane_openai_agents.state import (
    BACKEND,
    ROOT,
    ControlPlaneSandboxClientOptions,
    ControlPlaneSandboxSessionState,
)

_LIVE = frozenset({"queued", "running", "ready"})


class ControlPlaneSandboxClient(BaseSandboxClient[ControlPlaneSandboxClientOptions]):
    """Makes a workspace the sandbox of an agent.

    When the session ends, ``on_exit`` of the options says what becomes of the workspace:
    ``delete`` (of one that the session made), ``stop``, or ``keep`` (of one that was there). The
    record stays in any case. Failures raise the SDK's errors, whose sentences are the service's and
    whose ``cause`` is what ``controlplane_client`` raised.
    """

    backend_id = BACKEND
    supports_default_options = True

    def __init__(
        self,
        client: AsyncClient | None = None,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        """Ask the service of ``client``; without one, that of ``SVC_BASE_URL``."""
        self.client = client or AsyncClient()
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: ControlPlaneSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Start a workspace, or take the one of the options, and wait until it is ready."""
        options = options or ControlPlaneSandboxClientOptions()
        manifest = self._validate_manifest_for_create(manifest or Manifest(root=ROOT))
        session_id = uuid.uuid4()
        try:
            workspace = await self._workspace(options, str(session_id))
        except ControlPlaneError as error:
            raise start_failed(manifest.root, error) from error
        state = ControlPlaneSandboxSessionState(
            session_id=session_id,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            manifest=manifest,
            exposed_ports=options.exposed_ports,
            workspace_id=workspace.id,
            options=options,
        )
        return self._session(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Go on in the workspace of a session; start it when it is stopped.

        One that is gone is made anew where a snapshot holds its files, else this fails.
        """
        if not isinstance(state, ControlPlaneSandboxSessionState):
            raise TypeError(f"a {type(state).__name__} is no session of this client")
        state.assert_path_grants_rebound()
        try:
            files_are_there = await self._again(state)
        except ControlPlaneError as error:
            raise start_failed(state.manifest.root, error) from error
        if not files_are_there:
            state.workspace_root_ready = False
        return self._session(state, preserved=files_are_there)

    async def _again(self, state: ControlPlaneSandboxSessionState) -> bool:
        workspace = self.client.workspace(state.workspace_id)
        try:
            info = await workspace.refresh()
        except NotFound:
            info = None
        seconds = state.options.ready_timeout_seconds
        if info is None or info.status == "deleted":
            await self._replace(state, info)
            return False
        if info.status == "ready":
            return True
        if info.status in _LIVE:
            await workspace.wait_ready(timeout=seconds)
            return True
        await workspace.start(timeout=seconds)
        return state.keeps_files

    async def _replace(
        self, state: ControlPlaneSandboxSessionState, gone: WorkspaceInfo | None
    ) -> None:
        restorable = await state.snapshot.restorable(dependencies=self._dependencies)
        if not restorable or state.options.workspace_id is not None:
            why = "does not exist" if gone is None else "was deleted"
            raise ControlPlaneError(
                f"workspace {state.workspace_id} {why}, and no snapshot holds its files; its "
                "record can still be read"
            )
        workspace = await self._workspace(state.options, str(uuid.uuid4()))
        state.workspace_id = workspace.id

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Delete the workspace of a session, unless its options say that it stays."""
        inner = session._inner
        if not isinstance(inner, ControlPlaneSandboxSession):
            raise TypeError(f"a {type(inner).__name__} is no session of this client")
        if inner.state.on_exit == "delete":
            try:
                await inner.workspace.delete()
            except NotFound:
                return session
            except ControlPlaneError as error:
                raise start_failed(inner.state.manifest.root, error) from error
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Return the state that ``serialize_session_state`` made JSON of."""
        return self._deserialize_session_state_payload(payload, ControlPlaneSandboxSessionState)

    def _session(
        self, state: ControlPlaneSandboxSessionState, *, preserved: bool = False
    ) -> SandboxSession:
        inner = ControlPlaneSandboxSession(self.client, state)
        inner._set_start_state_preserved(preserved)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def _workspace(
        self, options: ControlPlaneSandboxClientOptions, key: str
    ) -> AsyncWorkspace:
        if options.workspace_id is not None:
            workspace = await self.client.connect(options.workspace_id)
            await workspace.wait_ready(timeout=options.ready_timeout_seconds)
            return workspace
        return await self.client.create(
            options.blueprint,
            repository=options.repository,
            name=options.name,
            ttl=options.ttl_seconds,
            members=options.members,
            idempotency_key=key,
            timeout=options.ready_timeout_seconds,
        )
