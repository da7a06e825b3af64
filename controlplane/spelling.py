"""How names and instants are spelled on the wire, and what a misspelled name may have meant.

Workers and gateways spell, too: nothing here needs the framework that serves the API.
"""

from __future__ import annotations

import difflib
from datetime import UTC, datetime

MAX_SHOWN_NAME = 80


def camel_case(name: str) -> str:
    """Return the member name on the wire of a Python name: ``owner_user_id`` → ``ownerUserId``."""
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def suggestion(name: str, known: list[str]) -> str:
    """Return `` Did you mean "x"?`` when a known name is close to ``name``, else nothing."""
    if len(name) > MAX_SHOWN_NAME:
        return ""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f' Did you mean "{close[0]}"?' if close else ""


def format_timestamp(value: datetime) -> str:
    """Return ``value`` as the wire shows instants: ``2026-01-02T03:04:05.678Z``."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
