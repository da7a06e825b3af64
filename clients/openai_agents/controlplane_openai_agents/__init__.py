"""Workspaces of the control plane as sandboxes of OpenAI's Agents SDK."""

from controlplane_openai_agents.releases import UntestedRelease, require_tested_release

require_tested_release()  # first: what is imported below has changed between releases

from controlplane_openai_agents.client import ControlPlaneSandboxClient  # noqa: E402
from controlplane_openai_agents.session import (  # noqa: E402
    ControlPlaneExecResult,
    ControlPlaneSandboxSession,
)
from controlplane_openai_agents.state import (  # noqa: E402
    ControlPlaneSandboxClientOptions,
    ControlPlaneSandboxSessionState,
)

__all__ = [
    "ControlPlaneExecResult",
    "ControlPlaneSandboxClient",
    "ControlPlaneSandboxClientOptions",
    "ControlPlaneSandboxSession",
    "ControlPlaneSandboxSessionState",
    "UntestedRelease",
]
