"""Strict parsing of JSON objects: each member is taken once, by its type, and none is left."""

from __future__ import annotations

from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple

RESERVED_PREFIX = "SVC_"


class ConfigError(Exception):
    """What was given cannot be used; the message says which member and why."""


class Members:
    """Takes the members of one JSON object one by one, and refuses what was not taken."""

    def __init__(self, value: object, pointer: str) -> None:
        if not isinstance(value, dict):
            raise ConfigError(f"{pointer or '/'} must be an object")
        self._left: Dict[str, Any] = dict(value)
        self._pointer = pointer

    def take(self, name: str) -> Any:
        """The member, of any type."""
        if name not in self._left:
            self.refuse(name, "is missing")
        return self._left.pop(name)

    def has(self, name: str) -> bool:
        """Whether the member is there and was not taken yet."""
        return name in self._left

    def is_text(self, name: str) -> bool:
        """Whether the member, which is there, is text of any kind."""
        return isinstance(self._left[name], str)

    def finish(self) -> None:
        """All members that are known have been taken."""
        for name in self._left:
            self.refuse(name, "is not a known member")

    def refuse(self, name: str, reason: str) -> NoReturn:
        """Raise ConfigError for this member."""
        raise ConfigError(f"{self._pointer}/{name} {reason}")

    def text(self, name: str, *, empty: bool = True) -> str:
        """Text that a process could be given."""
        value = self.take(name)
        if not is_text(value) or (not value and not empty):
            self.refuse(name, "must be text without NUL" if empty else "must be non-empty text")
        return str(value)

    def word(self, name: str) -> str:
        """Text that is not empty."""
        return self.text(name, empty=False)

    def optional(self, name: str) -> Optional[str]:
        """The same, or null."""
        if name in self._left and self._left[name] is None:
            del self._left[name]
            return None
        return self.word(name)

    def path(self, name: str) -> str:
        """An absolute path."""
        value = self.word(name)
        if not value.startswith("/"):
            self.refuse(name, "must be an absolute path")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.take(name)
        if not isinstance(value, bool):
            self.refuse(name, "must be true or false")
        return bool(value)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of the choices."""
        value = self.take(name)
        if value not in choices:
            self.refuse(name, "must be one of " + ", ".join(choices))
        return str(value)

    def seconds(self, name: str) -> float:
        """A number of seconds."""
        value = self.take(name)
        if type(value) not in (int, float) or not 0 <= value < 1e9:
            self.refuse(name, "must be a number of seconds")
        return float(value)

    def count(self, name: str, most: int) -> int:
        """A whole number up to `most`."""
        value = self.take(name)
        if type(value) is not int or not 0 <= value <= most:
            self.refuse(name, f"must be a whole number between 0 and {most}")
        return int(value)

    def items(self, name: str) -> List[Any]:
        """A list of anything."""
        value = self.take(name)
        if not isinstance(value, list):
            self.refuse(name, "must be a list")
        return list(value)

    def texts(self, name: str) -> Tuple[str, ...]:
        """A list of texts that are not empty."""
        values = self.items(name)
        for index, value in enumerate(values):
            if not is_text(value) or not value:
                self.refuse(f"{name}/{index}", "must be non-empty text")
        return tuple(values)

    def pointer(self, name: str) -> str:
        """Where the member is, as a JSON pointer."""
        return f"{self._pointer}/{name}"


def is_text(value: object) -> bool:
    """Whether this is text without NUL and lone surrogates."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def environment(top: Members) -> Dict[str, str]:
    """The member `env`: names and values of variables, none of them the platform\'s."""
    given = top.take("env")
    if not isinstance(given, dict):
        top.refuse("env", "must be an object")
    for name, value in given.items():
        if not (name.isascii() and name.isidentifier()):
            top.refuse(f"env/{name}", "is not a name for an environment variable")
        if name.startswith(RESERVED_PREFIX):
            top.refuse(
                f"env/{name}", f"is reserved: names in {RESERVED_PREFIX}* are the platform's"
            )
        if not is_text(value):
            top.refuse(f"env/{name}", "must be text without NUL")
    return dict(given)
