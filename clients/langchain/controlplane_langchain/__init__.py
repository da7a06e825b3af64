"""Workspaces of the control plane as sandboxes of LangChain's deep agents."""

from controlplane_langchain.sandbox import ControlPlaneSandbox

__all__ = ["ControlPlaneSandbox"]
