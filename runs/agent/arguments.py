"""The command line, read without `argparse`: that takes a third of what a whole `status` takes.

A subcommand is described by its members. One that begins with `--` takes a value, in the same word
behind `=` or in the next word; the others are its places, in their order, and must be there.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, NoReturn, Tuple

EXIT_MISUSED = 2


class Refused(Exception):
    """A value that does not fit; the message completes a sentence that begins with its name."""


class Member(NamedTuple):
    """One option or place; `convert` raises Refused or ValueError."""

    name: str
    default: Any = None
    required: bool = False
    choices: Tuple[str, ...] = ()
    convert: Callable[[str], Any] = str
    destination: str = ""
    """Where it is found; by default its name, with `_` for `-`."""

    @property
    def is_option(self) -> bool:
        return self.name.startswith("--")

    @property
    def attribute(self) -> str:
        return self.destination or self.name.lstrip("-").replace("-", "_")

    def value_of(self, text: str) -> Any:
        """What the text means."""
        if self.choices and text not in self.choices:
            raise Refused("must be one of " + ", ".join(self.choices))
        try:
            return self.convert(text)
        except ValueError:
            raise Refused("has an invalid value") from None

    def usage(self) -> str:
        """The member in a line of help."""
        value = "|".join(self.choices) or self.attribute.upper()
        if not self.is_option:
            return value if self.choices else f"<{self.name}>"
        return f"{self.name} {value}" if self.required else f"[{self.name} {value}]"


class Subcommand(NamedTuple):
    """What it is for, what it does with its options, and what it takes."""

    purpose: str
    act: Callable[[SimpleNamespace], int]
    members: Tuple[Member, ...]


def read(
    given: List[str], subcommands: Mapping[str, Subcommand]
) -> Tuple[Subcommand, SimpleNamespace]:
    """The subcommand and its options. Ends the process after help, and with 2 for a misuse."""
    if given[:1] in (["-h"], ["--help"]):
        _help(subcommands)
    if not given or given[0] not in subcommands:
        _misused("the subcommand must be one of " + ", ".join(subcommands))
    subcommand = subcommands[given[0]]
    if "-h" in given[1:] or "--help" in given[1:]:
        _help({given[0]: subcommand})
    try:
        return subcommand, SimpleNamespace(**_values(given[1:], subcommand.members))
    except Refused as refused:
        _misused(f"{given[0]}: {refused}")


def _values(words: List[str], members: Tuple[Member, ...]) -> Dict[str, Any]:
    options = {member.name: member for member in members if member.is_option}
    places = [member for member in members if not member.is_option]
    values: Dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        name, has_value, text = word.partition("=")
        if not word.startswith("-"):
            if not places:
                raise Refused(f"unexpected argument: {word}")
            member, text = places.pop(0), word
        elif name not in options:
            raise Refused(f"there is no option {name}")
        else:
            member = options[name]
            if not has_value:
                if not left:
                    raise Refused(f"{name} takes a value")
                text = left.pop(0)
        try:
            values[member.attribute] = member.value_of(text)
        except Refused as refused:
            raise Refused(f"{member.name} {refused}") from None
    absent = [member for member in members if member.attribute not in values]
    missing = [member.name for member in absent if member.required or not member.is_option]
    if missing:
        raise Refused("these are missing: " + ", ".join(missing))
    return {**{member.attribute: member.default for member in absent}, **values}


def _help(subcommands: Mapping[str, Subcommand]) -> NoReturn:
    for name, subcommand in subcommands.items():
        usage = " ".join(member.usage() for member in subcommand.members)
        print(f"agent {name} {usage}".rstrip() + f"\n    {subcommand.purpose}")
    sys.exit(0)


def _misused(message: str) -> NoReturn:
    print(f"agent: {message}", file=sys.stderr)
    sys.exit(EXIT_MISUSED)
