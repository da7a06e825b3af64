"""Members that only other planners of this format know: they are taken, ignored, and told of."""

from __future__ import annotations

import re
from typing import Final

from controlplane.errors import Fault

PLACE: Final = "customization"
IGNORED: Final = "^enable[A-Z][A-Za-z0-9]{0,63}$"
"""What such members of ``customization`` are called, as JSON Schema spells patterns."""
MEMBER_IGNORED: Final = "member-ignored"
MAX_WARNINGS: Final = 100
"""No answer names more."""

_NAME = re.compile(IGNORED.removesuffix("$") + r"\Z")


def ignored_members(data: object) -> list[str]:
    """Return the names of the ignored members of a blueprint, which is any JSON value."""
    part = data.get(PLACE) if isinstance(data, dict) else None
    return [name for name in part if _NAME.match(name)] if isinstance(part, dict) else []


def without_ignored(data: object) -> object:
    """Return ``data`` without its ignored members; ``data`` itself when it has none."""
    ignored = ignored_members(data)
    if not ignored or not isinstance(data, dict):
        return data
    kept = {name: value for name, value in data[PLACE].items() if name not in ignored}
    return {**data, PLACE: kept}


def warnings_of(data: object, *, pointer: str = "/spec") -> list[dict[str, str]]:
    """Return what the owner of a blueprint is told of its ignored members."""
    detail = "A member of another planner; it was ignored."
    return [
        Fault(MEMBER_IGNORED, detail, pointer=f"{pointer}/{PLACE}/{name}").to_wire()
        for name in ignored_members(data)[:MAX_WARNINGS]
    ]
