"""Which workspace is meant by what people write: an id, a name, or a part of an id."""

from __future__ import annotations

import re

from controlplane_client import ControlPlaneError, WorkspaceInfo

_ID = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


class NotNamed(ControlPlaneError):
    """No workspace is called so, or several are."""


def is_id(name: str) -> bool:
    """Tell whether it is a whole id."""
    return bool(_ID.match(name))


def meant(name: str, found: list[WorkspaceInfo]) -> WorkspaceInfo:
    """Return the one of ``found`` that is meant; raises ``NotNamed`` unless it is one."""
    fitting = [each for each in found if each.name == name]
    fitting = fitting or [each for each in found if name and each.id.startswith(name)]
    fitting = fitting or [each for each in found if name and each.id.endswith(name)]
    if len(fitting) > 1:
        fitting = [each for each in fitting if each.status == "ready"] or fitting
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        ids = "\n  ".join(f"{each.id} {each.name}, {each.status}" for each in fitting)
        raise NotNamed(f"{name} matches several workspaces:\n  {ids}")
    raise NotNamed(f"there is no workspace {name}")
