"""What the page about SSH quotes, held against the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def gateway_texts() -> list[str]:
    """Return every text of the SSH gateway's code, with … for what is filled in."""
    texts = []
    for path in (ROOT / "runs" / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(_literal(part) or "…" for part in node.values))
            elif isinstance(node, ast.expr) and (text := _literal(node)):
                texts.append(text)
    return texts


def test_the_page_about_ssh_quotes_what_the_gateway_says() -> None:
    page = (ROOT / "docs" / "users" / "ssh.md").read_text()
    table = page.partition("| It says |")[2].partition("\n\n")[0].splitlines()[2:]
    quoted = [text for row in table for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    said = gateway_texts()

    assert len(quoted) > 20
    assert [text for text in quoted if not any(text.rstrip("…") in known for known in said)] == []
