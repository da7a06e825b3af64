"""What a model gets at once: so much, and where to go on."""

from __future__ import annotations

import base64
from typing import Any

DEFAULT_BYTES = 16 * 1024
MOST_BYTES = 256 * 1024


def whole_characters(content: bytes) -> bytes:
    """Return the bytes without a character at their end that is not whole."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return content[:-back] if length > back and len(content) > back else content
    return content


def as_text(content: bytes) -> str:
    """Return bytes as text; what is no UTF-8 is replaced."""
    return content.decode("utf-8", "replace")


def text_or_base64(content: bytes) -> dict[str, str]:
    """Return the member ``content``, or ``content_base64`` for what is no text."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {"content_base64": base64.b64encode(content).decode()}
    if "\0" in text:
        return {"content_base64": base64.b64encode(content).decode()}
    return {"content": text}


def piece_of_text(text: str, offset: int, limit: int) -> dict[str, Any]:
    """Return a piece of a text by bytes, and where to go on when there is more."""
    content = text.encode()
    start = min(offset, len(content))
    piece = whole_characters(content[start : start + limit])
    end = start + len(piece)
    told: dict[str, Any] = {"text": as_text(piece), "total_bytes": len(content)}
    return told if end >= len(content) else {**told, "next_offset": end}
