"""JSON with comments and with commas behind the last entry, as editors write it."""

from __future__ import annotations

import json
import re
from typing import Any

_TEXT_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TEXT_OR_COMMA = re.compile(r'"(?:\\.|[^"\\\n])*"|,(?=\s*[}\]])')


def read_jsonc(text: str) -> Any:
    """Return what the text says; raises ``ValueError`` with line and column of a fault."""
    text = text.removeprefix("\ufeff")
    plain = _TEXT_OR_COMMENT.sub(_blank, text)
    return json.loads(_TEXT_OR_COMMA.sub(_blank, plain))


def _blank(found: re.Match[str]) -> str:
    # Line ends stay, so that a fault is where the parser says it is.
    part = found[0]
    return part if part.startswith('"') else re.sub(r"[^\n]", " ", part)
