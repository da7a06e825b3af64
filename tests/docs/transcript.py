"""What a page shows, held against what was printed.

The same, but for what differs each time: an id, digest, fingerprint or time of the page stands for
any other one (an id for the same one on the whole page), ``…`` in a line for any text, and a line
that is only ``…`` for any lines.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

_HEX = "[0-9a-f]"
KINDS = {
    "uuid": rf"\b{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}\b",
    "digest": rf"\b{_HEX}{{64}}\b",
    "fingerprint": r"SHA256:[A-Za-z0-9+/]{43}",
    "time": r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?",
    "anything": "…",
}
_VARIES = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in KINDS.items()))
_ANY_LINES = r"(?:[^\n]*\n)*?"


def difference(shown: Sequence[str], printed: str, known: dict[str, str]) -> str:
    """Return how ``printed`` differs from the page's lines; empty when it does not.

    ``known`` has what the ids of the page were so far, and takes those of these lines.
    """
    lines = [line.rstrip() for line in printed.splitlines()]
    names: dict[str, str] = {}
    expected = "".join(_pattern(line.rstrip(), names, known) for line in shown)
    match = re.fullmatch(expected, "".join(f"{line}\n" for line in lines))
    if match is None:
        told = difflib.unified_diff(list(shown), lines, "the page", "printed", lineterm="")
        return "\n".join(told) or "an id is not the one that it was before"
    known.update({text: match[name] for text, name in names.items()})
    return ""


def _pattern(line: str, names: dict[str, str], known: dict[str, str]) -> str:
    if line.strip() == "…":
        return _ANY_LINES
    parts: list[str] = []
    end = 0
    for found in _VARIES.finditer(line):
        parts += [re.escape(line[end : found.start()]), _varying(found, names, known)]
        end = found.end()
    return "".join([*parts, re.escape(line[end:]), r"\n"])


def _varying(found: re.Match[str], names: dict[str, str], known: dict[str, str]) -> str:
    text, kind = found[0], str(found.lastgroup)
    if kind == "anything":
        return r"[^\n]*?"
    if kind == "time":
        return KINDS[kind]
    if text in known:
        return re.escape(known[text])
    if text in names:
        return f"(?P={names[text]})"
    names[text] = f"id{len(names)}"
    return f"(?P<{names[text]}>{KINDS[kind]})"
