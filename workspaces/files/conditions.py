"""What the headers of a request ask of a file: conditions on its content, and a range of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from controlplane.errors import BadRequest, Fault

_TAG = re.compile(r'(?:W/)?"([^"]*)"\Z')
_RANGE = re.compile(r"bytes[ \t]*=[ \t]*(\d{0,18})-(\d{0,18})[ \t]*\Z", re.ASCII)
_MAX_TAGS = 100


def conditions_of(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return ``If-Match`` and ``If-None-Match`` as the agent takes them: hashes, or ``*``.

    Raises ``BadRequest`` (``bad-condition``) for what are no entity tags.
    """
    found = {"ifMatch": _tags(headers, "If-Match"), "ifNoneMatch": _tags(headers, "If-None-Match")}
    return {name: tags for name, tags in found.items() if tags is not None}


def range_of(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return ``Range`` and ``If-Range``; a range that makes no sense is ignored (RFC 9110)."""
    asked = _RANGE.match(headers.get("Range", "").strip().lower())
    if asked is None or asked[0].endswith("=-"):
        return {}
    first, last = (int(each) if each else None for each in asked.groups())
    if (first is None and last is None) or (
        first is not None and last is not None and last < first
    ):
        return {}
    found: dict[str, Any] = {"range": [first, last]}
    wanted = headers.get("If-Range")
    if wanted is not None:
        tag = _TAG.match(wanted.strip())
        # A weak tag, or a date, says too little to put two pieces together.
        found["ifRange"] = tag[1] if tag is not None and not wanted.startswith("W/") else ""
    return found


def _tags(headers: Mapping[str, str], name: str) -> list[str] | None:
    given = headers.get(name)
    if given is None:
        return None
    if given.strip() == "*":
        return ["*"]
    tags = [_TAG.match(each.strip()) for each in given.split(",")]
    found = [tag[1] for tag in tags if tag is not None]
    if len(found) != len(tags) or len(tags) > _MAX_TAGS or "*" in found:
        detail = 'Entity tags such as "<sha256>", separated by commas, or * are expected here.'
        raise BadRequest(
            f"{name} is invalid: {detail}",
            code="bad-condition",
            errors=[Fault("bad-condition", detail, header=name)],
        )
    return found
