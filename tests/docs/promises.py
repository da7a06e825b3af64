"""What can be said of a command without running it: that its parts are there.

Held against the code are the commands of this repository: targets of make, management commands,
``deploy.up`` and ``runs.offline`` with their options, and files named by their path.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from functools import cache

from django.core.management import get_commands, load_command_class

from tests.docs.pages import ROOT

_SEPARATORS = re.compile(r"[;|&()\n]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")


def broken_promises(command: str) -> list[str]:
    """Return what a command names that is not there."""
    return [told for words in _simple_commands(command) for told in _faults(words)]


def _simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command, also of those in substitutions."""
    for inner in re.findall(r"\$\(((?:[^()]|\([^()]*\))*)\)", text):
        yield from _simple_commands(inner)
    lexer = shlex.shlex(
        text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars="();<>|&"
    )
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if _SEPARATORS.fullmatch(word):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def _faults(words: list[str]) -> list[str]:
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in {"sudo", "exec", "until", "do"}):
        words = words[1:]
    if not words:
        return []
    program, *arguments = words
    if program == "make":
        targets = [word for word in arguments if not word.startswith("-") and "=" not in word]
        return [f"make {target}" for target in targets if target not in make_targets()]
    if _PYTHON.fullmatch(program) and arguments[:1] == ["manage.py"]:
        return _management(arguments[1:])
    if _PYTHON.fullmatch(program) and arguments[:1] == ["-m"]:
        return _module(arguments[1:])
    if program.startswith("./") or program.endswith(".sh"):
        return [] if (ROOT / program).is_file() else [f"no file {program}"]
    return []


@cache
def make_targets() -> frozenset[str]:
    """Return the targets that the Makefile explains."""
    text = (ROOT / "Makefile").read_text()
    return frozenset(re.findall(r"^([a-z][a-z-]*):.*## ", text, flags=re.MULTILINE))


def _management(words: list[str]) -> list[str]:
    name, *arguments = words
    app = get_commands().get(name)
    if app is None:
        return [f"manage.py {name}"]
    command = load_command_class(str(app), name)
    options = _known_options(command.create_parser("manage.py", name))
    return [f"manage.py {name} {each}" for each in _options(arguments) if each not in options]


def _module(words: list[str]) -> list[str]:
    module, *arguments = words
    if module == "deploy.up":
        ours, _, program = _partition(arguments)
        known = re.findall(r'"(--[a-z]+|[a-z-]+)"', (ROOT / "deploy/up/__main__.py").read_text())
        faults = [f"deploy.up {word}" for word in ours if word not in known]
        return faults + (_faults(program) if program else [])
    path = ROOT / (module.replace(".", "/") + ".py")
    if not path.is_file() and not (ROOT / module.replace(".", "/")).is_dir():
        return (
            [] if module in {"venv", "json.tool", "pytest", "gunicorn"} else [f"no module {module}"]
        )
    if path.is_file():
        text = path.read_text()
        return [f"{module} {each}" for each in _options(arguments) if f'"{each}"' not in text]
    return []


def _partition(words: list[str]) -> tuple[list[str], str, list[str]]:
    if "--" not in words:
        return words, "", []
    at = words.index("--")
    return words[:at], "--", words[at + 1 :]


def _known_options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a command and of its subcommands."""
    options = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            options.update(*map(_known_options, action.choices.values()))
    return options


def _options(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
