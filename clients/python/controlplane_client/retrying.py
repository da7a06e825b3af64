"""When a request is made again, and how long to wait before it."""

from __future__ import annotations

import random
from collections.abc import Mapping

import httpx

NOTHING_WAS_DONE = frozenset({"too-many-connections", "too-many-streams"})
"""Codes after which any request may be repeated, whatever it asks for."""

PASSING = frozenset(
    {
        "access-not-recorded",
        "database-unavailable",
        "queue-publish-failed",
        "scm-busy",
        "upload-disk-full",
        "upstream-failed",
        "workspace-unreachable",
    }
)
"""Codes of what may be over in a moment, for requests that may be repeated."""

_FIRST_SECONDS, _MOST_SECONDS, _MOST_ASKED_SECONDS = 0.2, 5.0, 30.0


def may_repeat_failure(error: httpx.TransportError, *, repeatable: bool) -> bool:
    """Tell whether to try again after there was no answer."""
    never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return repeatable or never_sent


def may_repeat_answer(status: int, code: str, *, repeatable: bool) -> bool:
    """Tell whether to try again after this answer; ``code`` is empty for what is not ours."""
    if code in NOTHING_WAS_DONE:
        return True
    return repeatable and (code in PASSING or (not code and status in {502, 503, 504}))


def seconds_asked(headers: Mapping[str, str]) -> float | None:
    """Return how long an answer asks to wait; None when it does not say."""
    asked = headers.get("retry-after", "")
    return float(asked) if asked.isdecimal() else None


def seconds_before(attempt: int, asked: float | None = None) -> float:
    """Return how long to wait before try ``attempt`` (1 is the first repetition)."""
    if asked is not None:
        return min(asked, _MOST_ASKED_SECONDS)
    longest = min(_MOST_SECONDS, _FIRST_SECONDS * 2.0 ** (attempt - 1))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 (spreads clients, keeps no secret)
