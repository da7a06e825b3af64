"""``svc replay``: a recording, played at the speed at which it happened."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def play(cast: str, *, speed: float, longest_pause: float) -> None:
    """Write what an asciicast shows, with its pauses divided by ``speed``; 0 has none."""
    header, *events = cast_lines(cast)
    shown = now = 0.0
    for told, kind, text in events:
        now = told if header["version"] == 2 else now + told
        if kind != "o":
            continue
        if speed:
            time.sleep(max(0.0, min(longest_pause, (now - shown) / speed)))
        shown = now
        sys.stdout.write(text)
        sys.stdout.flush()


def cast_lines(cast: str) -> list[Any]:
    """Return the header of an asciicast and its events."""
    # Output may hold characters that str.splitlines takes for ends of lines, too.
    return [json.loads(line) for line in cast.split("\n") if line]
