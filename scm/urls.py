"""The paths of source hosting, in the specification's order. (``scm.git_urls`` reads sources.)"""

from django.urls import path

from scm.views import InstallationViewSet
from scm.webhook_views import WebhookViewSet

installation = "v1/scm/installations/<uuid:installation_id>"

urlpatterns = [
    path("v1/scm/installations", InstallationViewSet.as_view({"get": "list"})),
    path(f"{installation}/repositories", InstallationViewSet.as_view({"get": "repositories"})),
    path(
        "v1/scm/installations/import",
        InstallationViewSet.as_view({"post": "import_installation"}),
    ),
    path(f"{installation}/sync", InstallationViewSet.as_view({"post": "sync"})),
    path("v1/scm/webhooks", WebhookViewSet.as_view({"post": "create"})),
]
