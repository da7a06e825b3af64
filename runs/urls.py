"""The paths of runs and their records, in the specification's order."""

from django.urls import path

from runs.views.attach import AttachViewSet
from runs.views.exec import ExecViewSet
from runs.views.runs import RunViewSet
from runs.views.streams import StreamViewSet

run = "v1/runs/<uuid:run_id>"

urlpatterns = [
    path("v1/workspaces/<uuid:workspace_id>/exec", ExecViewSet.as_view({"post": "create"})),
    path("v1/stream", StreamViewSet.as_view({"get": "owner"})),
    path("v1/workspaces/<uuid:workspace_id>/stream", StreamViewSet.as_view({"get": "workspace"})),
    path("v1/runs", RunViewSet.as_view({"get": "list", "post": "create"})),
    path(run, RunViewSet.as_view({"get": "retrieve", "patch": "partial_update"})),
    path(f"{run}/input", ExecViewSet.as_view({"post": "input"})),
    path(f"{run}/attach", AttachViewSet.as_view({"get": "attach"})),
    path(f"{run}/timeline", RunViewSet.as_view({"get": "timeline"})),
    path(f"{run}/stream", RunViewSet.as_view({"get": "stream"})),
    path(f"{run}/events/<str:sequence>", RunViewSet.as_view({"get": "event"})),
    path(f"{run}/scrollback", RunViewSet.as_view({"get": "scrollback"})),
    path(f"{run}/loss", RunViewSet.as_view({"get": "loss"})),
    path(f"{run}/changes", RunViewSet.as_view({"get": "changes"})),
    path(f"{run}/export", RunViewSet.as_view({"get": "export"})),
]
