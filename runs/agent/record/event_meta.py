"""The meta of an event: compact JSON in UTF-8, and how it holds bytes that are no text."""

from __future__ import annotations

import base64
import json
from typing import Any, Dict, Union


def encode_meta(meta: Dict[str, Any]) -> bytes:
    """A meta as its bytes: compact JSON in UTF-8."""
    if not meta:
        return b""
    return json.dumps(meta, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def text_of(value: bytes) -> Union[str, Dict[str, str]]:
    """Bytes as a meta holds them: text, or lossy text and base64 when they are not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {
            "text": value.decode("utf-8", "replace"),
            "base64": base64.b64encode(value).decode("ascii"),
        }
