"""The paths of registries, in the specification's order."""

from django.urls import path

from registries.views import RegistryViewSet

registry = "v1/registries/<str:registry_id>"

urlpatterns = [
    path(registry, RegistryViewSet.as_view({"get": "retrieve"})),
    path(f"{registry}/ping", RegistryViewSet.as_view({"get": "ping"})),
    path(f"{registry}/extensions", RegistryViewSet.as_view({"get": "extensions"})),
    path(f"{registry}/tags", RegistryViewSet.as_view({"get": "tags"})),
    path(f"{registry}/manifest", RegistryViewSet.as_view({"get": "manifest"})),
]
