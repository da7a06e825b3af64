"""What the README says of error codes, held against the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.errors import ControlPlaneError

ROOT = Path(__file__).resolve().parents[2]
APPS = ("accounts", "builds", "controlplane", "registries", "runs", "scm", "workspaces")
JOB_ERRORS = {"JobError", "BuildError", "LaunchError", "SourceError", "UnsupportedError"}
CODE = re.compile(r"[a-z]+(-[a-z]+)+\Z")


def _calls() -> Iterator[ast.Call]:
    for app in APPS:
        for path in (ROOT / app).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield node


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def job_codes() -> set[str]:
    """Return the codes that job errors are raised with, as far as they are literals."""
    first = (call.args[0] for call in _calls() if _name(call) in JOB_ERRORS and call.args)
    return {code for node in first if (code := _literal(node)) and CODE.match(code)}


def request_codes() -> set[str]:
    """Return the codes of problem bodies: those of the classes, and those given where raised."""

    def tree(cls: type[ControlPlaneError]) -> Iterator[type[ControlPlaneError]]:
        yield cls
        for child in cls.__subclasses__():
            yield from tree(child)

    given = {
        code
        for call in _calls()
        for keyword in call.keywords
        if keyword.arg == "code" and (code := _literal(keyword.value)) and CODE.match(code)
    }
    return given | {cls.code for cls in tree(ControlPlaneError)}


@pytest.mark.parametrize("codes", [job_codes, request_codes])
def test_the_readme_names_every_code(codes: object) -> None:
    assert callable(codes)
    found = codes()
    readme = (ROOT / "README.md").read_text()

    missing = sorted(code for code in found if f"`{code}`" not in readme)

    assert len(found) > 10
    assert not missing


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


def test_the_readme_quotes_what_the_gateway_says() -> None:
    readme = (ROOT / "README.md").read_text()
    table = readme.partition("| It says |")[2].partition("\n\n")[0].splitlines()[2:]
    quoted = [text for row in table for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    said = gateway_texts()

    assert len(quoted) > 20
    assert [text for text in quoted if not any(text.rstrip("…") in known for known in said)] == []
