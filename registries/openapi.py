"""What registries add to the OpenAPI description: texts."""

from __future__ import annotations

_FAILURES = """\
| Status | `code` | When |
|---|---|---|
| 404 | `registry-not-found` | `registryId` is not the configured registry |
"""

_UPSTREAM = """\
| 502 | `registry-failed` | the registry failed; `upstream` says how |

`upstream` has the members `name`, `status` (what the registry answered, when it did) and `reason`:
`unreachable`, `timed-out`, `tls-failed` (its certificate is not trusted, or it does not speak TLS),
`unauthorized` (401 or 403: it requires an account, or a different one), `redirected` (no redirect
is followed), `status` (any other), `malformed` (an invalid answer) or `too-large`.
"""

_OWN = """\
Where a proxy names the caller, only repositories exist that the caller has published to.
"""

DETAIL_DESCRIPTION = f"""\
The registry as this installation has it configured; the registry itself is not asked.

{_FAILURES}"""

PING_DESCRIPTION = f"""\
Asks the registry whether it answers as one.

{_FAILURES}{_UPSTREAM}"""

EXTENSIONS_DESCRIPTION = f"""\
Asks for the extensions of the OCI distribution API. For a registry without extension discovery (it
answers
404), the list is empty.

{_FAILURES}{_UPSTREAM}"""

TAGS_DESCRIPTION = f"""\
All tags of the repository, from all of the registry's pages, sorted, each once. For a repository
that the registry does not have, the list is empty.

{_OWN}
{_FAILURES}\
| 404 | `repository-not-found` | a proxy names the caller, who has no such repository |
{_UPSTREAM}"""

MANIFEST_DESCRIPTION = f"""\
An image manifest, index or artifact of OCI, a manifest or manifest list of Docker (version 2), or
whatever else the registry answers that is a JSON object, as it is stored: its digest is verified. A
list is not resolved to one of its platforms.

{_OWN}
{_FAILURES}\
| 404 | `repository-not-found` | the registry, or the caller, has no such repository |
| 404 | `manifest-not-found` | the repository has no such tag or digest |
{_UPSTREAM}"""
