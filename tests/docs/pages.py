"""The pages of the documentation as they are written: headings, links, and commands.

A command stands in a block of the language ``console``, after ``$``; what follows it up to the next
one is what it prints. It ends where bash says that it is complete, so it may have several lines.
A block that the tests cannot run has a comment before it that says why::

    <!-- not run: it needs a second machine -->
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LANGUAGES = {
    "apache",
    "console",
    "ini",
    "js",
    "json",
    "mermaid",
    "nginx",
    "python",
    "ssh-config",
    "text",
    "toml",
    "yaml",
}
"""What blocks may be written in. Commands outside of ``console`` would never be run."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)\s*$")
_NOT_RUN = re.compile(r"^<!-- not run: (?P<reason>\S.*) -->$")
_HEADING = re.compile(r"^#{1,6} (?P<text>.+?)\s*$")
_LINK = re.compile(r"!?\[(?:[^\]\[]|!\[[^\]]*\]\([^)]*\))*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`[^`]*`")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page."""

    line: int
    text: str
    printed: tuple[str, ...]
    """The lines that the page shows as its output."""
    not_run: str | None
    """Why no test runs it; None when one does."""


@dataclass(slots=True)
class Block:
    """A fenced block."""

    line: int
    language: str
    lines: list[str] = field(default_factory=list)
    not_run: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page."""

    path: Path
    blocks: tuple[Block, ...]
    anchors: frozenset[str]
    links: tuple[tuple[int, str], ...]
    """Line and target of each link."""

    @property
    def name(self) -> str:
        """The page's path in the checkout."""
        return str(self.path.relative_to(ROOT))

    @property
    def commands(self) -> list[Command]:
        """The commands of all blocks, in their order."""
        return [
            command
            for block in self.blocks
            if block.language == "console"
            for command in _commands_of(block)
        ]


def page_paths() -> list[Path]:
    """Return every page that is for people who use, run or change the service."""
    return [
        ROOT / "README.md",
        ROOT / "deploy" / "README.md",
        *sorted(ROOT.glob("clients/*/README.md")),
        *sorted(ROOT.glob("docs/**/*.md")),
    ]


@cache
def read_page(path: Path) -> Page:
    """Read one page."""
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    open_block: Block | None = None
    reason: str | None = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if open_block is not None:
            if fence and not fence["language"]:
                open_block = None
            else:
                open_block.lines.append(line)
        elif fence:
            open_block = Block(number, fence["language"], not_run=reason)
            blocks.append(open_block)
            reason = None
        elif marked := _NOT_RUN.match(line):
            reason = marked["reason"]
        else:
            assert reason is None or not line, f"{path}:{number}: no block follows the comment"
            prose.append((number, line))
    assert open_block is None, f"{path}: the last block is not closed"
    headings = [match["text"] for _, line in prose if (match := _HEADING.match(line))]
    links = [
        (number, match["target"])
        for number, line in prose
        for match in _LINK.finditer(_CODE.sub("``", line))
    ]
    return Page(path, tuple(blocks), frozenset(_anchors(headings)), tuple(links))


def _anchors(headings: list[str]) -> list[str]:
    """Return the anchors that GitHub gives to headings."""
    anchors: list[str] = []
    for heading in headings:
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        plain = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        again = sum(
            re.fullmatch(rf"{re.escape(plain)}(-\d+)?", other) is not None for other in anchors
        )
        anchors.append(f"{plain}-{again}" if again else plain)
    return anchors


def _commands_of(block: Block) -> list[Command]:
    commands: list[Command] = []
    lines = list(enumerate(block.lines, block.line + 1))
    while lines:
        number, line = lines.pop(0)
        assert line.startswith("$ "), f"line {number}: a block of commands begins with one"
        text = line[2:]
        while not _is_complete(text):
            assert lines, f"line {number}: the command is never complete"
            text += "\n" + lines.pop(0)[1]
        printed = []
        while lines and not lines[0][1].startswith("$ "):
            printed.append(lines.pop(0)[1])
        commands.append(Command(number, text, tuple(printed), block.not_run))
    return commands


@cache
def _is_complete(text: str) -> bool:
    if text.endswith("\\"):
        return False
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    return checked.returncode == 0 and not checked.stderr
