"""Reading metas, which a workspace may have forged: nothing here raises, whatever the bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from runs.agent.record.frames import STREAM_NAMES

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
TEXT_LIMIT = 64 * 1024
"""Characters of one derived text; the event itself keeps everything."""

STREAM_NUMBERS = {name: number for number, name in STREAM_NAMES.items()}


def read(meta: bytes) -> dict[str, Any]:
    """Return the JSON object in ``meta``; an empty one when there is none that can be read."""
    if not meta:
        return {}
    try:
        told = json.loads(meta)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def text(value: object, limit: int = TEXT_LIMIT) -> str:
    """Return ``value`` as text that a text column takes; the empty text when it is none.

    Takes both forms of texts in metas: a string, and ``{"text", "base64"}`` for bytes that are no
    UTF-8. What is too long ends with an ellipsis.
    """
    if isinstance(value, Mapping):
        value = value.get("text")
    if not isinstance(value, str):
        return ""
    if len(value) > limit:
        value = value[: limit - 1] + "…"
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def raw(value: object) -> bytes | None:
    """Return the bytes that a text of a meta stands for; None when it is none."""
    if isinstance(value, Mapping):
        encoded = value.get("base64")
        if isinstance(encoded, str):
            try:
                return base64.b64decode(encoded, validate=True)
            except ValueError:
                pass
        value = value.get("text")
    return value.encode("utf-8", "replace") if isinstance(value, str) else None


def texts(value: object, limit: int = TEXT_LIMIT) -> list[str]:
    """Return a list of texts, of at most ``limit`` characters together; cut where it is longer."""
    found: list[str] = []
    for each in value if isinstance(value, list) else ():
        if limit <= 0:
            found.append("…")
            break
        found.append(text(each, limit))
        # Empty arguments count too: a million of them is no list that a row should carry.
        limit -= len(found[-1]) + 1
    return found


def integer(value: object, low: int = 0, high: int = INT64_MAX) -> int | None:
    """Return a whole number brought into range; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return min(max(value, low), high)


def streams(value: object) -> list[int]:
    """Return the numbers of the named streams; unknown names are left out."""
    named = value if isinstance(value, list) else []
    return sorted({STREAM_NUMBERS.get(each, 0) for each in named if isinstance(each, str)} - {0})
