"""What package resolution adds to the OpenAPI description: texts."""

from __future__ import annotations

RESOLVE_DESCRIPTION = """\
Says what a name means in a distribution. An override of the operator comes first, then the curated
table of usual names, then the distribution's own index as it was last read. The answer is 200 even
when nothing is found:

| `status` | Means |
|---|---|
| `resolved` | `packages` are installed |
| `ambiguous` | several packages may be meant; `alternatives` names them, and none is chosen |
| `unsupported` | it is known, but not for this family, version or architecture; see `reason` |
| `not-found` | there is no package with this name or a similar one |
| `invalid` | this cannot be the name of a package |

| Status | `code` | When |
|---|---|---|
| 502 | `package-index-unavailable` | the answer needs an index that has not been read yet; its \
family is `targetOs` |
"""
