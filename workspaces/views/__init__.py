"""The endpoints of workspaces, sandboxes and packages: one viewset each."""

from workspaces.views.packages import PackageViewSet
from workspaces.views.sandboxes import SandboxViewSet
from workspaces.views.workspaces import WorkspaceViewSet

__all__ = ["PackageViewSet", "SandboxViewSet", "WorkspaceViewSet"]
