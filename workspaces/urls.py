"""The paths of workspaces, sandboxes and packages, in the specification's order."""

from django.urls import path

from workspaces.views import (
    EgressViewSet,
    FileViewSet,
    PackageViewSet,
    SandboxViewSet,
    WorkspaceViewSet,
)

workspace = "v1/workspaces/<uuid:workspace_id>"

urlpatterns = [
    path("v1/packages/resolve", PackageViewSet.as_view({"get": "resolve"})),
    path("v1/workspaces", WorkspaceViewSet.as_view({"get": "list", "post": "create"})),
    path(f"{workspace}/name", WorkspaceViewSet.as_view({"patch": "rename"})),
    path(
        workspace,
        WorkspaceViewSet.as_view(
            {"get": "retrieve", "patch": "partial_update", "delete": "destroy"}
        ),
    ),
    path(f"{workspace}/stop", WorkspaceViewSet.as_view({"post": "stop"})),
    path(f"{workspace}/start", WorkspaceViewSet.as_view({"post": "start"})),
    path(f"{workspace}/attempts", WorkspaceViewSet.as_view({"get": "list_attempts"})),
    path(f"{workspace}/events", WorkspaceViewSet.as_view({"get": "list_events"})),
    path(f"{workspace}/ssh-target", WorkspaceViewSet.as_view({"get": "ssh_target"})),
    path(f"{workspace}/egress", EgressViewSet.as_view({"get": "retrieve", "put": "update"})),
    path(f"{workspace}/egress/proposals", EgressViewSet.as_view({"get": "list_proposals"})),
    path(
        f"{workspace}/egress/proposals/<uuid:proposal_id>/approve",
        EgressViewSet.as_view({"post": "approve_proposal"}),
    ),
    path(
        f"{workspace}/egress/proposals/<uuid:proposal_id>/dismiss",
        EgressViewSet.as_view({"post": "dismiss_proposal"}),
    ),
    path(
        f"{workspace}/files",
        FileViewSet.as_view({"get": "retrieve", "put": "update", "delete": "destroy"}),
    ),
    path(f"{workspace}/files/list", FileViewSet.as_view({"get": "list"})),
    path(f"{workspace}/files/stat", FileViewSet.as_view({"get": "stat"})),
    path(f"{workspace}/files/move", FileViewSet.as_view({"post": "move"})),
    path(f"{workspace}/files/mkdir", FileViewSet.as_view({"post": "make_directory"})),
    path(f"{workspace}/archive", FileViewSet.as_view({"get": "pack", "put": "unpack"})),
    path(f"{workspace}/ports", FileViewSet.as_view({"get": "ports"})),
    path(f"{workspace}/ports/<int:port>/links", FileViewSet.as_view({"post": "link_port"})),
    path("v1/sandboxes", SandboxViewSet.as_view({"post": "create"})),
    path("v1/sandboxes/<uuid:sandbox_id>", SandboxViewSet.as_view({"get": "retrieve"})),
]
