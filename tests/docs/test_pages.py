"""What the pages say about themselves, each other and the code is true."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import LANGUAGES, ROOT, page_paths, read_page
from tests.docs.promises import broken_promises, make_targets

PAGES = page_paths()
NAMES = [read_page(path).name for path in PAGES]
OUTSIDE = {"http", "https", "ssh"}
PATHS = re.compile(
    r"(?<![\w./-])(?:accounts|builds|controlplane|deploy|docs|examples|registries|runs|scm|tests"
    r"|workspaces)/[\w./-]*\w(?![\w*…<{])"
)
MADE = {"deploy/.env"}
"""Files that an installation makes."""


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_links_lead_to_pages_and_headings_that_are_there(path: Path) -> None:
    page = read_page(path)
    broken = []
    for line, target in page.links:
        parts = urlsplit(target)
        if parts.scheme in OUTSIDE:
            continue
        found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not found.exists() or not found.is_relative_to(ROOT):
            broken.append(f"{page.name}:{line}: {target}")
        elif parts.fragment and parts.fragment not in read_page(found).anchors:
            broken.append(f"{page.name}:{line}: no heading {target}")
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_a_page_is_one_subject_of_readable_width(path: Path) -> None:
    text = path.read_text()
    assert re.match(r"# \S", text), "a page begins with its subject"
    assert (
        len(re.findall(r"^# ", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)) == 1
    )
    assert text.endswith("\n")
    assert not re.search(r"[ \t]+$", text, re.MULTILINE), "blanks at the end of a line"


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_every_block_has_a_language_and_shows_commands_where_they_are_tested(path: Path) -> None:
    page = read_page(path)
    assert [
        f"{page.name}:{each.line}" for each in page.blocks if each.language not in LANGUAGES
    ] == []
    assert [
        f"{page.name}:{each.line}: only commands are run or not"
        for each in page.blocks
        if each.not_run is not None and each.language != "console"
    ] == []


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_what_a_command_names_of_this_repository_is_there(path: Path) -> None:
    page = read_page(path)
    assert [
        f"{page.name}:{command.line}: {told}"
        for command in page.commands
        for told in broken_promises(command.text)
    ] == []


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_files_and_targets_that_are_mentioned_are_there(path: Path) -> None:
    page = read_page(path)
    quoted = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL))
    named = {each for text in quoted for each in PATHS.findall(text)} - MADE
    assert [each for each in sorted(named) if not (ROOT / each).exists()] == []
    targets = {each for text in quoted for each in re.findall(r"^make ([a-z-]+)", text)}
    assert sorted(targets - make_targets()) == [], page.name


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path in seen or path.suffix != ".md" or not path.is_file():
            continue
        seen.add(path)
        targets = [urlsplit(target) for _, target in read_page(path).links]
        todo += [(path.parent / each.path).resolve() for each in targets if not each.scheme]
    assert set(PAGES) - seen == set()


def test_the_pictures_are_small_and_used() -> None:
    pictures = set((ROOT / "docs" / "images").iterdir())
    used = {
        (path.parent / target).resolve()
        for path in PAGES
        for _, target in read_page(path).links
        if target.endswith(".png")
    }
    assert pictures == used
    assert all(picture.stat().st_size < 150_000 for picture in pictures)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("make nothing", ["make nothing"]),
        ("make up && make down YES=1", []),
        ("python manage.py verifyrun $RUN --public-kex x", ["manage.py verifyrun --public-kex"]),
        ("python3 -m deploy.up run -- python manage.py nocommand", ["manage.py nocommand"]),
        ("X=1 python manage.py pruneruns --older-than 30 --dry-run", []),
        ('eval "$(python3 -m deploy.up envy)"', ["deploy.up envy"]),
        (
            "python -m runs.offline x --no-such-option",
            ["runs.offline --no-such-option"],
        ),
        ("deploy/nothing.sh --x", ["no file deploy/nothing.sh"]),
    ],
)
def test_what_is_not_there_is_noticed(command: str, told: list[str]) -> None:
    assert broken_promises(command) == told
