"""The paths of registries, in the specification's order."""

from django.urls import path

from registries import views

urlpatterns = [
    path("v1/registries/<str:registry_id>", views.RegistryDetail.as_view()),
    path("v1/registries/<str:registry_id>/ping", views.RegistryPing.as_view()),
    path("v1/registries/<str:registry_id>/extensions", views.RegistryExtensions.as_view()),
    path("v1/registries/<str:registry_id>/tags", views.RegistryTags.as_view()),
    path("v1/registries/<str:registry_id>/manifest", views.RegistryManifest.as_view()),
]
