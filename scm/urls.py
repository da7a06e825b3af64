"""The paths of source hosting, in the specification's order. (``scm.git_urls`` reads sources.)"""

from django.urls import path

from scm import views, webhook_views

urlpatterns = [
    path("v1/scm/installations", views.InstallationList.as_view()),
    path(
        "v1/scm/installations/<uuid:installation_id>/repositories",
        views.RepositoryList.as_view(),
    ),
    path("v1/scm/installations/import", views.InstallationImport.as_view()),
    path("v1/scm/installations/<uuid:installation_id>/sync", views.InstallationSync.as_view()),
    path("v1/scm/webhooks", webhook_views.WebhookDeliveries.as_view()),
]
