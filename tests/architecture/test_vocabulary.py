"""Words that nobody outside this project would understand stay out of it.

The glossary in ``docs/developers/architecture.md`` says which words are ours. These were used once,
and each has a word of the field in its place.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.architecture.sources import ROOT

INSTEAD = {
    "attendant": "worker",
    "door": "engine proxy",
    "duty": "task",
    "fulfil": "carry out",
    "intent": "transition, or request",
    "patience": "timeout, or how many seconds are waited",
    "parting": "before_discard",
    "salvage": "collect",
    "standing": "state",
    "wish": "request",
}
"""Banned word: what to write."""

_NOT_OURS = ("LICENSE", "tests/architecture/test_vocabulary.py", "openapi.json")
_INSIDE = r"(?<![a-z])(?:{})(?:s|led|ling|ment)?(?![a-z])"


def banned(text: str) -> list[str]:
    """Return the banned words of a text, inside of identifiers too, in order."""
    found = re.findall(_INSIDE.format("|".join(INSTEAD)), _words_apart(text))
    return [next(word for word in INSTEAD if each.startswith(word)) for each in found]


def _words_apart(text: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()


@pytest.mark.parametrize(
    "text", ["a wish", "DoorLimits", "open_door", "PATIENCE_SECONDS", "fulfilled", "two intents"]
)
def test_a_banned_word_is_found_wherever_it_stands(text: str) -> None:
    assert len(banned(text)) == 1


@pytest.mark.parametrize("text", ["outstanding", "indoors", "understanding", "departing"])
def test_words_that_contain_one_are_not_found(text: str) -> None:
    assert banned(text) == []


def test_no_file_uses_a_banned_word() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.html", "*.sh", "*.yaml", "*.toml", "*.js", "*.css"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert len(listed) > 700
    found = []
    for name in listed:
        if name.endswith(_NOT_OURS) or "asciinema" in name:
            continue
        path = ROOT / name
        for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
            found += [f"{name}:{number}: {word!r}: {INSTEAD[word]}" for word in banned(line)]
    assert found == []
