"""``_tag``: the name by which typed clients of this API know an error, ``<Group><Kind>Error``.

The group is that of the path, the kind that of the status: ``WorkspaceNotFoundError``.
"""

from __future__ import annotations

from typing import Final

GROUPS: Final = {
    "connected-accounts": "ConnectedAccount",
    "packages": "Packages",
    "profiles": "Profile",
    "registries": "Registries",
    "runs": "Run",
    "sandboxes": "Workspace",
    "scm": "Scm",
    "ssh-keys": "SshKey",
    "stream": "Workspace",
    "system": "System",
    "workspaces": "Workspace",
}
"""By the first part of a path below ``/v1``; everything else is ``System``."""

KINDS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    408: "RequestTimeout",
    409: "Conflict",
    410: "Gone",
    412: "PreconditionFailed",
    413: "PayloadTooLarge",
    415: "UnsupportedMediaType",
    416: "RangeNotSatisfiable",
    426: "UpgradeRequired",
    429: "TooManyRequests",
    500: "InternalServer",
    502: "BadGateway",
    503: "ServiceUnavailable",
    507: "InsufficientStorage",
}


def error_tag(path: str, status: int) -> str:
    """Return the class name of an error with this status at this path."""
    _, _, below = path.partition("/v1/")
    group = GROUPS.get(below.partition("/")[0], "System")
    kind = KINDS.get(status) or ("BadRequest" if status < 500 else "InternalServer")
    return f"{group}{kind}Error"
