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
