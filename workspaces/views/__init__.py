"""The endpoints of workspaces, sandboxes, files and packages: one viewset each."""

from workspaces.views.egress import EgressViewSet
from workspaces.views.files import FileViewSet
from workspaces.views.packages import PackageViewSet
from workspaces.views.sandboxes import SandboxViewSet
from workspaces.views.workspaces import WorkspaceViewSet

__all__ = ["EgressViewSet", "FileViewSet", "PackageViewSet", "SandboxViewSet", "WorkspaceViewSet"]
