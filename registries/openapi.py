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
`unreachable`, `timed-out`, `tls-failed` (its certificate is not trusted, or it speaks no TLS),
`unauthorized` (401 or 403: it wants an account, or another one), `redirected` (no redirect is
followed), `status` (any other), `malformed` (an answer that cannot be right) or `too-large`.
"""

DETAIL_DESCRIPTION = f"""\
What this installation knows of it; the registry itself is not asked.

{_FAILURES}"""

PING_DESCRIPTION = f"""\
Asks the registry whether it is one.

{_FAILURES}{_UPSTREAM}"""

EXTENSIONS_DESCRIPTION = f"""\
Asks for the extensions of the OCI distribution API. A registry that has no discovery of extensions
(it answers 404) has none: the list is empty.

{_FAILURES}{_UPSTREAM}"""

TAGS_DESCRIPTION = f"""\
All tags, of all of the registry's pages, sorted and each once. A repository that the registry does
not have has none: the list is empty.

{_FAILURES}{_UPSTREAM}"""

MANIFEST_DESCRIPTION = f"""\
An image manifest, index or artifact of OCI, a manifest or manifest list of Docker (version 2), or
whatever else the registry answers that is a JSON object, as it is stored: its digest is verified. A
list is not resolved to one of its platforms.

{_FAILURES}\
| 404 | `repository-not-found` | the registry has no such repository |
| 404 | `manifest-not-found` | the repository has no such tag or digest |
{_UPSTREAM}"""
