"""Every path of the service. There are no trailing slashes and no redirects to them."""

from django.contrib import admin
from django.urls import include, path

from controlplane.health import SystemViewSet
from controlplane.http.documentation import DocumentationView
from controlplane.http.openapi import DescriptionViewSet

admin.autodiscover()

urlpatterns = [
    path("", SystemViewSet.as_view({"get": "root"})),
    path("healthz", SystemViewSet.as_view({"get": "liveness"})),
    path("readyz", SystemViewSet.as_view({"get": "readiness"})),
    path("v1/system/setup-state", SystemViewSet.as_view({"get": "setup_state"})),
    path("", include("controlplane.metrics.urls")),
    path("", include("workspaces.urls")),
    path("", include("accounts.urls")),
    path("", include("runs.urls")),
    path("", include("registries.urls")),
    path("", include("scm.urls")),
    path("openapi.json", DescriptionViewSet.as_view({"get": "retrieve"}), name="openapi"),
    path("docs", DocumentationView.as_view(), name="docs"),
    path("", include("builds.urls")),
    path("admin/", admin.site.urls),
]

handler400 = "controlplane.http.problems.bad_request"
handler403 = "controlplane.http.problems.permission_denied"
handler404 = "controlplane.http.problems.not_found"
handler500 = "controlplane.http.problems.server_error"
