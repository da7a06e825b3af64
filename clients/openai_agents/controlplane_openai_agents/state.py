"""What a session is made with, and what of it is serialized."""

from __future__ import annotations

from typing import Any, Literal

from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from pydantic import Field

BACKEND: Literal["controlplane"] = "controlplane"
ROOT = "/workspace/repo"
"""Where commands begin in a workspace whose blueprint says nothing else."""

OnExit = Literal["delete", "stop", "keep"]


def _shell() -> dict[str, Any]:
    return {"harness": {"id": "shell"}}


class ControlPlaneSandboxClientOptions(BaseSandboxClientOptions):
    """What workspace a session gets."""

    type: Literal["controlplane"] = BACKEND
    blueprint: dict[str, Any] = Field(default_factory=_shell)
    """What the workspace is made of."""
    repository: str | None = None
    """Where its image is published; None is a repository of the owner's own."""
    name: str | None = None
    ttl_seconds: int | None = None
    """After how many seconds it is stopped, whatever becomes of this process."""
    members: dict[str, Any] = Field(default_factory=dict)
    """More members of the request, like ``credentials``."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of all commands; the manifest's goes before it."""
    exposed_ports: tuple[int, ...] = ()
    """Ports that ``resolve_exposed_port`` may be asked for."""
    workspace_id: str | None = None
    """Work in this workspace, which exists, instead of a new one."""
    on_exit: OnExit | None = None
    """What becomes of the workspace when the session ends; see ``ControlPlaneSandboxClient``."""
    ready_timeout_seconds: float = 900.0
    """How long a workspace may take to become ready."""


class ControlPlaneSandboxSessionState(SandboxSessionState):
    """A session as JSON. It holds no secret unless ``env``, ``members`` or the manifest do."""

    type: Literal["controlplane"] = BACKEND
    workspace_id: str
    options: ControlPlaneSandboxClientOptions

    @property
    def on_exit(self) -> OnExit:
        """What becomes of the workspace when the session ends."""
        if self.options.on_exit is not None:
            return self.options.on_exit
        return "delete" if self.options.workspace_id is None else "keep"

    @property
    def keeps_files(self) -> bool:
        """Whether the workspace's files outlive a stop."""
        runtime = self.options.blueprint.get("runtime") or {}
        return bool(runtime.get("persistence") == "persistent")
