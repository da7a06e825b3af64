"""The small changes of an SQL statement that stands in a module as a text."""

from __future__ import annotations

import re
from collections.abc import Iterator

_STATEMENT = re.compile(r"\s*(WITH|SELECT|INSERT|UPDATE|DELETE)\s")
_CONDITION = re.compile(r"\s+(AND|OR|WHERE)\s+(?=\S)")
_NEXT = re.compile(r"\s+(?:AND|OR)\s+")
_END_OF_CONDITION = re.compile(
    r"\s+(?:AND|OR|ORDER BY|GROUP BY|RETURNING|LIMIT|FOR|ON CONFLICT)\s|\n\s*\n|;"
)
_ASSIGNMENT = re.compile(r"^ +\w+ = [^\n]*,\n", re.MULTILINE)
_WORDS = (
    (re.compile(r" FOR UPDATE(?: OF \{?\w+\}?)?(?: SKIP LOCKED| NOWAIT)?"), ""),
    (re.compile(r" SKIP LOCKED"), ""),
    (re.compile(r"\bIS NOT NULL\b"), "IS NULL"),
    (re.compile(r"\bIS NULL\b"), "IS NOT NULL"),
    (re.compile(r" NOT (?=EXISTS|IN\b)"), " "),
    (re.compile(r"<>"), "="),
    (re.compile(r"(?<=[\w)]) <= (?=[\w(%])"), " < "),
    (re.compile(r"(?<=[\w)]) < (?=[\w(%])"), " <= "),
    (re.compile(r"(?<=[\w)]) >= (?=[\w(%])"), " > "),
    (re.compile(r"(?<=[\w)]) > (?=[\w(%])"), " >= "),
    (re.compile(r"(?<=[\w)]) \+ (?=[\w(%])"), " - "),
    (re.compile(r"(?<=[\w)]) - (?=[\w(%])"), " + "),
    (re.compile(r"(?<=\w)( DESC)\b"), " ASC"),
    (re.compile(r"(?<=\()'\w+', (?=')"), ""),
    (re.compile(r"(?<='), '\w+'(?=\))"), ""),
)


def changes_of_statement(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield where a statement is changed, and what comes there; nothing if ``text`` is none.

    A condition or an assignment is left out, a comparison the other way round, a lock not taken.
    What takes a value by its place is kept: without it the statement could not be sent.
    """
    if not _STATEMENT.match(text):
        return
    for found in _CONDITION.finditer(text):
        start, end = found.start(), _end_of_condition(text, found.end())
        if found[1] == "WHERE" and (following := _NEXT.match(text, end)):
            start, end = found.end(), following.end()
        if "%s" not in text[start:end]:
            yield start, end, ""
    for found in _ASSIGNMENT.finditer(text):
        if "%s" not in found[0]:
            yield found.start(), found.end(), ""
    for pattern, other in _WORDS:
        for found in pattern.finditer(text):
            yield found.start(), found.end(), other


def _end_of_condition(text: str, start: int) -> int:
    """Return where a condition ends: before the next one, the next clause, or its parenthesis."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] == ")" and depth == 0:
            return place
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0 and _END_OF_CONDITION.match(text, place):
            return place
    return len(text.rstrip())
