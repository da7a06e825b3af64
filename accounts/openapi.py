"""What accounts add to the OpenAPI description: texts, examples."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample

REGISTER_DESCRIPTION = """\
The key is one line of an OpenSSH `.pub` file. Registering a key again returns the existing record
unchanged; a deleted key comes back under its old id, with the new name.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | the key is not accepted; `errors` says why |
| 409 | `ssh-key-taken` | another owner has registered this key |
"""

DELETE_DESCRIPTION = """\
The key can no longer log in; open sessions stay open. A second call answers 404
`ssh-key-not-found`, as for a key that is unknown or belongs to another owner.
"""

RESOLVE_DESCRIPTION = """\
Only for the SSH gateway. The token is checked before the body.

| Status | `code` | When |
|---|---|---|
| 401 | `gateway-token-invalid` | the token is missing or wrong |
| 404 | `ssh-key-not-found` | there is no such active key |
| 503 | `gateway-token-unset` | the installation has no token |
"""

REGISTER_EXAMPLES = [
    OpenApiExample(
        "An Ed25519 key",
        value={
            "ownerUserId": "usr_local",
            "publicKey": "ssh-ed25519 "
            "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl ada@laptop",
        },
        request_only=True,
    )
]

CONNECT_DESCRIPTION = """\
The secret is sealed and never shown again. A second call for the same owner, provider and name
replaces the secret and makes the account active again, under its id.

| Provider | Secret |
|---|---|
| `claude` | what `claude setup-token` prints |
| `codex` | the content of `~/.codex/auth.json` |
| `github` | a personal access token, or what `gh auth token` prints |
| `generic` | any text of 6 bytes or more, for the environment variable that `name` names |

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | the secret is not in this provider's format; `errors` says more |
| 503 | `credentials-key-unset` | the installation has no `SVC_CREDENTIALS_KEY` |
"""

DISCONNECT_DESCRIPTION = """\
The sealed secret is erased at once, and the name is free again. Profiles that give the account keep
showing it, as archived. A second call answers 404 `connected-account-not-found`, as for an account
that is unknown or belongs to another owner.
"""

INVALID_DESCRIPTION = """\
The account is not used until it is connected again. Marking it twice changes nothing. 404
`connected-account-not-found` when the account is unknown, deleted or another owner's.
"""

RENEWALS_DESCRIPTION = """\
Codex renews its tokens by itself, in the workspace. Anyone working there could have written other
tokens into its file, so renewed tokens stay in that workspace, even across restarts, until the
account's owner approves them here. 404 `connected-account-not-found` when the account is unknown,
deleted or another owner's.
"""

APPROVE_DESCRIPTION = """\
The account takes over the renewed secret, which workspaces receive at their next start; all other
renewals are discarded. Approve only renewals from workspaces that you trust; connecting the account
again discards all renewals.

| Status | `code` | When |
|---|---|---|
| 404 | `connected-account-not-found` | unknown, deleted, or another owner's |
| 404 | `renewal-not-found` | it was approved or replaced in the meantime, or never existed |
| 409 | `renewal-outdated` | the account has a newer secret, or is marked invalid |
"""

PROFILES_DESCRIPTION = """\
Every owner has a profile called `default`, which is stored once accounts are assigned to it.
Operators create further profiles in the admin.
"""

BINDINGS_DESCRIPTION = """\
With `bindings`, the whole set is replaced at once or not at all. With `provider` and
`connectedAccountId`, only that provider's account is replaced, and null removes it; a `generic`
account is added to the others. A profile has at most one account of each provider, and any number
of `generic` ones.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | an account belongs to another provider, or is named twice |
| 404 | `profile-not-found`, `connected-account-not-found` | unknown, or another owner's |
| 409 | `connected-account-not-active` | an account is invalid or was deleted |
| 409 | `profile-archived` | the profile is archived |
"""

CONNECT_EXAMPLES = [
    OpenApiExample(
        "A token for the environment",
        value={
            "ownerUserId": "usr_local",
            "provider": "generic",
            "name": "STAGING_API_TOKEN",
            "secret": "not-a-real-token",
        },
        request_only=True,
    )
]

BINDINGS_EXAMPLES = [
    OpenApiExample(
        "The whole set",
        value={
            "ownerUserId": "usr_local",
            "bindings": [
                {
                    "provider": "claude",
                    "connectedAccountId": "01890a5d-ac96-774b-bcce-b302099a8057",
                }
            ],
        },
        request_only=True,
    ),
    OpenApiExample(
        "One provider's account",
        value={
            "ownerUserId": "usr_local",
            "provider": "claude",
            "connectedAccountId": None,
        },
        request_only=True,
    ),
]
