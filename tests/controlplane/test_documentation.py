"""What pages quote of gateways and of reasons, held against the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from workspaces.lifecycle.reasons import ENGINE_DRAINING, ENGINE_LOST, NODE_LOST

ROOT = Path(__file__).resolve().parents[2]
CODE = r"[a-z]+(-[a-z]+)+"


def _literal(node: ast.AST) -> str | None:
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


def test_the_page_of_symptoms_quotes_what_the_gateway_says() -> None:
    page = (ROOT / "docs" / "operators" / "troubleshooting.md").read_text()
    table = page.partition("## People cannot get in")[2].partition("\n## ")[0]
    (row,) = (line for line in table.splitlines() if "WORKSPACE_SSH_GATEWAY_TOKEN" in line)
    (quoted,) = re.findall(r"`([^`]+)`", row.split("|")[1])
    assert quoted in gateway_texts()
    assert "token" in quoted


def test_the_page_about_previews_has_every_code_and_status_of_their_gateway() -> None:
    page = (ROOT / "docs" / "users" / "ports.md").read_text()
    table = page.partition("## When there is no answer")[2].partition("\n## ")[0]
    refused = [
        [text for text in map(_literal, ast.walk(call)) if text and re.fullmatch(CODE, text)]
        for path in (ROOT / "runs" / "preview").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "PreviewRefused"
    ]
    codes = {code for each in refused for code in each}
    assert {"preview-busy", "bad-answer", "workspace-not-found"} <= codes
    assert {code for code in codes if f"`{code}`" not in table} == set()
    reading = (ROOT / "runs" / "preview" / "http_messages.py").read_text()
    statuses = set(re.findall(r"raise BadMessage\(.*, (\d{3})\)", reading))
    assert {"431", "501", "505"} <= statuses
    (row,) = (line for line in table.splitlines() if "`bad-request`" in line)
    assert statuses - set(re.findall(r"\d{3}", row.split("|")[1])) == set()


def test_the_page_of_codes_has_every_reason_and_no_other() -> None:
    page = (ROOT / "docs" / "users" / "errors.md").read_text()
    documented = re.findall(r"^\| `([a-z-]+)` ", page.partition("\n## Reasons\n")[2], re.MULTILINE)
    names = {"ENGINE_LOST": ENGINE_LOST, "ENGINE_DRAINING": ENGINE_DRAINING, "NODE_LOST": NODE_LOST}
    given = set()
    for module in ("workspaces/lifecycle/reasons.py", "runs/reasons.py"):
        for call in ast.walk(ast.parse((ROOT / module).read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Reason":
                for node in ast.walk(call.args[0]):
                    code = names.get(getattr(node, "id", "")) or _literal(node)
                    given |= {code} if code else set()
    assert len(given) > 10
    assert sorted(documented) == sorted(given)
