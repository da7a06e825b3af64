"""What source hosting adds to the OpenAPI description: texts, examples."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample

_FAILURES = """\
| Status | `code` | When |
|---|---|---|
"""

_GRANTED = """\
| 404 | `installation-not-found` | there is no such installation, or you were not granted it |
"""

_ASKING = """\
| 502 | `scm-provider-failed` | the provider failed; `upstream` says how |
| 503 | `scm-app-unconfigured` | no provider app is configured; this is checked first |
| 503 | `scm-busy` | the provider is busy; `Retry-After` says when to try again |

`upstream` has the members `name`, `status` (what the provider answered, when it did), `reason`, and
`retryAfterSeconds` when it asks for a pause. Reasons: `unreachable`, `timed-out`, `tls-failed`,
`unauthorized` (it does not accept the app's id and key), `forbidden`, `rate-limited`, `not-found`,
`suspended`, `refused` (it gives no token for this), `redirected` (no redirect is followed),
`status` (any other), `malformed` (an invalid answer) or `too-large`.
"""

INSTALLATIONS_DESCRIPTION = """\
The installations that the owner has imported or was granted, as long as they are active at the
provider.
"""

REPOSITORIES_DESCRIPTION = f"""\
The repositories that the provider listed when it was last asked, without those removed since.

{_FAILURES}\
| 403 | `installation-not-active` | it is suspended, or was removed at the provider |
{_GRANTED}"""

IMPORT_DESCRIPTION = f"""\
Reads an installation of the app from the provider, with its repositories. The first owner to import
it holds it; others need an operator's grant. Importing it again refreshes it. A suspended
installation is imported without repositories, and cannot be used until it is active.

{_FAILURES}{_GRANTED}{_ASKING}"""

SYNC_DESCRIPTION = f"""\
Reads an installation and its repositories from the provider again. Of two concurrent reads, the one
that began later counts.

{_FAILURES}\
| 403 | `installation-not-active` | the provider says that it is suspended, or no longer knows it |
{_GRANTED}{_ASKING}"""

IMPORT_EXAMPLES = [
    OpenApiExample(
        "An installation",
        value={"ownerUserId": "usr_local", "externalInstallationId": "48151623"},
        request_only=True,
    )
]
