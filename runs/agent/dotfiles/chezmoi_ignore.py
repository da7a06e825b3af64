"""The patterns of `.chezmoiignore` (`*`, `?`, `[...]`, `{a,b}`, `**`), matched on target paths."""

from __future__ import annotations

import posixpath
import re
from typing import List

from .errors import DotfilesError


class IgnorePatterns:
    """All patterns of a source state. Exclusions (`!pattern`) win, wherever they stand."""

    def __init__(self) -> None:
        self._included: List[re.Pattern[str]] = []
        self._excluded: List[re.Pattern[str]] = []

    def read(self, text: str, directory: str, shown: str) -> None:
        """Add the patterns of one file, which count from the target folder it belongs to."""
        for line in text.splitlines():
            pattern = re.sub(r"(^|\s)#.*", "", line).strip()
            if not pattern:
                continue
            patterns = self._included
            if pattern.startswith("!"):
                patterns, pattern = self._excluded, pattern[1:]
            try:
                patterns.append(_compiled(posixpath.normpath(posixpath.join(directory, pattern))))
            except (re.error, RecursionError):
                raise DotfilesError(f"{shown}: cannot read the pattern {pattern!r}") from None

    def match(self, target_path: str) -> bool:
        """Whether the target is to be left alone."""
        if any(pattern.fullmatch(target_path) for pattern in self._excluded):
            return False
        return any(pattern.fullmatch(target_path) for pattern in self._included)


def _compiled(pattern: str) -> re.Pattern[str]:
    expression = ""
    position = 0
    depth = 0
    while position < len(pattern):
        rest = pattern[position:]
        step = 1
        if rest.startswith("**/"):
            expression, step = expression + "(?:[^/]+/)*", 3
        elif rest.startswith("/**") and len(rest) == 3:
            expression, step = expression + "/.+", 3
        elif rest.startswith("**"):
            expression, step = expression + ".*", 2
        elif rest[0] == "*":
            expression += "[^/]*"
        elif rest[0] == "?":
            expression += "[^/]"
        elif rest[0] == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            expression, step = expression + _character_class(rest[1:end]), end + 1
        elif rest[0] == "{":
            expression, depth = expression + "(?:", depth + 1
        elif rest[0] == "}" and depth:
            expression, depth = expression + ")", depth - 1
        elif rest[0] == "," and depth:
            expression += "|"
        elif rest[0] == "\\" and len(rest) > 1:
            expression, step = expression + re.escape(rest[1]), 2
        else:
            expression += re.escape(rest[0])
        position += step
    return re.compile(expression, re.DOTALL)


def _character_class(inner: str) -> str:
    negated = inner[0] in "!^"
    members = re.sub(r"([\\\[\]&~|^])", r"\\\1", inner[1:] if negated else inner)
    return f"[^/{members}]" if negated else f"[{members}]"
