"""What accounts add to the OpenAPI description: texts, examples."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample

REGISTER_DESCRIPTION = """\
The key is one line of an OpenSSH `.pub` file. Registering a key again gives the same record as it
is, and one that was deleted comes back under its id, with the new name.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | the key is not taken; `errors` says why |
| 409 | `ssh-key-taken` | another owner has registered this key |
"""

DELETE_DESCRIPTION = """\
The key opens nothing from now on; sessions that are open stay open. A second call finds nothing:
404 `ssh-key-not-found`, as for a foreign or an unknown key.
"""

RESOLVE_DESCRIPTION = """\
For the SSH gateway alone. The token is looked at before the body.

| Status | `code` | When |
|---|---|---|
| 401 | `gateway-token-invalid` | the token is missing or wrong |
| 404 | `ssh-key-not-found` | no active key is this one |
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
| 400 | `validation-failed` | the secret is not what its provider gives out; `errors` says more |
| 503 | `credentials-key-unset` | the installation has no `SVC_CREDENTIALS_KEY` |
"""

DISCONNECT_DESCRIPTION = """\
The sealed secret is erased at once, and the name is free again. Profiles that give the account
keep showing it, as archived. A second call finds nothing: 404 `connected-account-not-found`, as for
a foreign or an unknown account.
"""

INVALID_DESCRIPTION = """\
Nothing uses the account until it is connected again. Marking it twice changes nothing. 404
`connected-account-not-found` for what is unknown, deleted or another owner's.
"""

RENEWALS_DESCRIPTION = """\
Codex renews its tokens by itself, in the workspace. Anybody who works there could have put other
tokens into its file, so what was renewed stays in that workspace, also when it is started again,
until its owner approves it here. 404 `connected-account-not-found` for what is unknown, deleted or
another owner's.
"""

APPROVE_DESCRIPTION = """\
The account gets the renewed secret, which workspaces are given from their next start on; nothing
else waits for approval then. Approve what comes out of a workspace whose work you trust; connecting
the account again does away with all renewals.

| Status | `code` | When |
|---|---|---|
| 404 | `connected-account-not-found` | unknown, deleted, or another owner's |
| 404 | `renewal-not-found` | it was approved or replaced meanwhile, or never was |
| 409 | `renewal-outdated` | the account has a later secret, or is marked invalid |
"""

PROFILES_DESCRIPTION = """\
Every owner has a profile called `default`, which is stored once it is given accounts. Operators
make more of them in the admin.
"""

BINDINGS_DESCRIPTION = """\
With `bindings`, the whole set is replaced at once or not at all. With `provider` and
`connectedAccountId`, only the account of this provider is, and null takes it away; a `generic`
account is added to the others. A profile gives one account of each provider, and any number of
`generic` ones.

| Status | `code` | When |
|---|---|---|
| 400 | `validation-failed` | an account is another provider's, or is named twice |
| 404 | `profile-not-found`, `connected-account-not-found` | unknown, or another owner's |
| 409 | `connected-account-not-active` | an account is invalid or was deleted |
| 409 | `profile-archived` | the profile is not in use any more |
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
