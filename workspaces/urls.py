"""The paths of workspaces and sandboxes, in the specification's order."""

from django.urls import path

from workspaces import lifecycle_views, views

urlpatterns = [
    path("v1/workspaces", views.WorkspaceList.as_view()),
    path("v1/workspaces/<uuid:workspace_id>/name", views.WorkspaceName.as_view()),
    path("v1/workspaces/<uuid:workspace_id>", lifecycle_views.WorkspaceResource.as_view()),
    path("v1/workspaces/<uuid:workspace_id>/stop", lifecycle_views.WorkspaceStop.as_view()),
    path("v1/workspaces/<uuid:workspace_id>/start", lifecycle_views.WorkspaceStart.as_view()),
    path("v1/workspaces/<uuid:workspace_id>/attempts", views.WorkspaceAttempts.as_view()),
    path("v1/workspaces/<uuid:workspace_id>/events", views.WorkspaceEvents.as_view()),
    path("v1/workspaces/<uuid:workspace_id>/ssh-target", views.WorkspaceSshTarget.as_view()),
    path("v1/sandboxes", views.SandboxList.as_view()),
    path("v1/sandboxes/<uuid:sandbox_id>", views.SandboxDetail.as_view()),
]
