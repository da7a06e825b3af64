"""What is shown to people and written to logs: one line, and nothing that moves a terminal."""

from __future__ import annotations

MAX_LINE = 380
"""OpenSSH shows at most 400 bytes of the reason for a disconnect."""


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """Return ``text`` with everything escaped that is not printable, at most ``limit`` bytes."""
    shown = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text[: limit + 1]
    )
    cut = shown.encode("utf-8", "backslashreplace")
    if len(cut) <= limit:
        return cut.decode("utf-8")
    return cut[: limit - 3].decode("utf-8", "ignore") + "…"
