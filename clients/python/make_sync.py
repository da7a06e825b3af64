"""Make ``controlplane_client/_sync`` of ``_async``, so that both have the same methods.

``python clients/python/make_sync.py`` writes it; a test holds what is committed against this.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "controlplane_client"
MODULES = ("attachment", "client", "connection", "files", "run", "workspace")

_CHANGES = [
    (r"AsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"\basync (?=def|with|for)", ""),
    (r"\bawait ", ""),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\baclosing\b", "closing"),
    (r"\baiter_(?=raw|bytes)", "iter_"),
    (r"\ba(?=close\(|close\b|read\(\))", ""),
    (r"__a(?=enter__|exit__)", "__"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b_async\b", "_sync"),
]


def made(module: str) -> str:
    """Return the text of a module for threads."""
    text = (PACKAGE / "_async" / f"{module}.py").read_text()
    for pattern, replacement in _CHANGES:
        text = re.sub(pattern, replacement, text)
    for command in (
        ["check", "--select", "I", "--fix", "-q", "-"],
        ["format", "-q", "-"],
    ):
        place = str(PACKAGE / "_sync" / f"{module}.py")
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", place],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def main() -> None:
    """Write all of them."""
    for module in MODULES:
        (PACKAGE / "_sync" / f"{module}.py").write_text(made(module))


if __name__ == "__main__":
    main()
