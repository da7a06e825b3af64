"""Every path of the service. There are no trailing slashes and no redirects to them."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularSwaggerSplitView

from controlplane import views
from controlplane.openapi import Description

admin.autodiscover()

urlpatterns = [
    path("", views.Root.as_view()),
    path("healthz", views.Liveness.as_view()),
    path("readyz", views.Readiness.as_view()),
    path("v1/system/setup-state", views.SetupState.as_view()),
    path("", include("builds.urls")),
    path("", include("controlplane.metrics.urls")),
    path("", include("workspaces.urls")),
    path("", include("accounts.urls")),
    path("", include("runs.urls")),
    path("", include("registries.urls")),
    path("", include("scm.routes")),
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

handler400 = "controlplane.problems.bad_request"
handler403 = "controlplane.problems.permission_denied"
handler404 = "controlplane.problems.not_found"
handler500 = "controlplane.problems.server_error"
