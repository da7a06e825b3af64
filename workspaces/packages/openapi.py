"""What package resolution adds to the OpenAPI description: texts."""

from __future__ import annotations

RESOLVE_DESCRIPTION = """\
Says what a name means in a distribution. First of all counts an override of the operator, then the
curated table of usual names, then the distribution's own index as it was last read. The answer is
200 also when nothing is found:

| `status` | Means |
|---|---|
| `resolved` | `packages` are installed |
| `ambiguous` | several packages may be meant, `alternatives` names them; none is ever chosen |
| `unsupported` | it is known, but not for this family, version or architecture; see `reason` |
| `not-found` | nothing is called like this, nor nearly so |
| `invalid` | no package can be called like this |

| Status | `code` | When |
|---|---|---|
| 502 | `package-index-unavailable` | the answer takes an index that nobody has read yet; its \
family is `targetOs` |
"""
