"""The paths of SSH keys, connected accounts and profiles, in the specification's order."""

from django.urls import path

from accounts import credential_views, views

urlpatterns = [
    path("v1/ssh-keys", views.SshKeyList.as_view()),
    path("v1/ssh-keys/<uuid:ssh_key_id>", views.SshKeyDetail.as_view()),
    path("v1/ssh-keys/resolve-principal", views.PrincipalResolution.as_view()),
    path("v1/connected-accounts", credential_views.ConnectedAccountList.as_view()),
    path(
        "v1/connected-accounts/<uuid:connected_account_id>",
        credential_views.ConnectedAccountDetail.as_view(),
    ),
    path(
        "v1/connected-accounts/<uuid:connected_account_id>/mark-invalid",
        credential_views.ConnectedAccountInvalidation.as_view(),
    ),
    path("v1/profiles", credential_views.ProfileList.as_view()),
    path(
        "v1/profiles/<uuid:profile_id>/credential-bindings",
        credential_views.CredentialBindings.as_view(),
    ),
]
