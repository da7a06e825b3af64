"""The path of package resolution."""

from django.urls import path

from workspaces.packages import views

urlpatterns = [path("v1/packages/resolve", views.PackageResolution.as_view())]
