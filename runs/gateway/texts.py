"""What is shown to people and written to logs: one line, and nothing that moves a terminal."""

from __future__ import annotations

MAX_LINE = 380
"""OpenSSH shows at most 400 bytes of the reason for a disconnect."""

TYPED = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": "-",
        "\u2026": "...",
        "\u00a0": " ",
    }
)
"""How a typewriter writes it: OpenSSH shows everything beyond ASCII as octal numbers."""


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """Return ``text`` in printable ASCII, the rest escaped, at most ``limit`` characters long."""
    shown = "".join(
        character if " " <= character <= "~" else character.encode("unicode_escape").decode("ascii")
        for character in text[: limit + 1].translate(TYPED)
    )
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."
