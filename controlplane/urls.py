"""Every path of the service. There are no trailing slashes and no redirects to them."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularSwaggerSplitView

from controlplane import health
from controlplane.http.openapi import Description

admin.autodiscover()

urlpatterns = [
    path("", health.Root.as_view()),
    path("healthz", health.Liveness.as_view()),
    path("readyz", health.Readiness.as_view()),
    path("v1/system/setup-state", health.SetupState.as_view()),
    path("", include("controlplane.metrics.urls")),
    path("", include("workspaces.urls")),
    path("", include("accounts.urls")),
    path("", include("runs.urls")),
    path("", include("registries.urls")),
    path("", include("scm.urls")),
    path("openapi.json", Description.as_view(), name="openapi"),
    path(
        "docs",
        SpectacularSwaggerSplitView.as_view(
            url_name="openapi", template_name="controlplane/docs.html"
        ),
        name="docs",
    ),
    path("admin/", admin.site.urls),
]

handler400 = "controlplane.http.problems.bad_request"
handler403 = "controlplane.http.problems.permission_denied"
handler404 = "controlplane.http.problems.not_found"
handler500 = "controlplane.http.problems.server_error"
