"""The paths of SSH keys, in the specification's order."""

from django.urls import path

from accounts import views

urlpatterns = [
    path("v1/ssh-keys", views.SshKeyList.as_view()),
    path("v1/ssh-keys/<uuid:ssh_key_id>", views.SshKeyDetail.as_view()),
    path("v1/ssh-keys/resolve-principal", views.PrincipalResolution.as_view()),
]
