"""The paths of SSH keys, connected accounts and profiles, in the specification's order."""

from django.urls import path

from accounts.credential_views import ConnectedAccountViewSet, ProfileViewSet
from accounts.views import SshKeyViewSet

account = "v1/connected-accounts/<uuid:connected_account_id>"

urlpatterns = [
    path("v1/ssh-keys", SshKeyViewSet.as_view({"get": "list", "post": "create"})),
    path("v1/ssh-keys/<uuid:ssh_key_id>", SshKeyViewSet.as_view({"delete": "destroy"})),
    path("v1/ssh-keys/resolve-principal", SshKeyViewSet.as_view({"post": "resolve_principal"})),
    path(
        "v1/connected-accounts", ConnectedAccountViewSet.as_view({"get": "list", "post": "create"})
    ),
    path(account, ConnectedAccountViewSet.as_view({"delete": "destroy"})),
    path(f"{account}/mark-invalid", ConnectedAccountViewSet.as_view({"post": "mark_invalid"})),
    path(f"{account}/renewals", ConnectedAccountViewSet.as_view({"get": "renewals"})),
    path(
        f"{account}/renewals/<uuid:renewal_id>/approve",
        ConnectedAccountViewSet.as_view({"post": "approve_renewal"}),
    ),
    path("v1/profiles", ProfileViewSet.as_view({"get": "list"})),
    path(
        "v1/profiles/<uuid:profile_id>/credential-bindings",
        ProfileViewSet.as_view(
            {"get": "credential_bindings", "put": "replace_credential_bindings"}
        ),
    ),
]
