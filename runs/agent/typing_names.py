"""The names of `typing` that the agent uses while it runs, in place of the module itself.

That one takes half a MiB in each process. Annotations are not evaluated, and what aliases are made
of is of no interest. The archive's entry puts this in its place; whoever asks it for another name
gets that from the real one.
"""

from __future__ import annotations

import sys
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_make: Any = namedtuple


class _Alias:
    """Stands for a type, whatever its parameters."""

    def __getitem__(self, parameters: object) -> object:
        return self


_ALIASES = (
    "Any Callable Container Deque Dict FrozenSet Iterable Iterator List Mapping Match NoReturn "
    "Optional Pattern Sequence Set Tuple Union"
)
globals().update(dict.fromkeys(_ALIASES.split(), _Alias()))


class Protocol:
    """A base that says nothing."""


class _Named(type):
    """Makes a named tuple of the annotations of a class."""

    def __new__(mcs, name: str, bases: object, members: dict[str, Any]) -> type:
        fields = [str(field) for field in members.get("__annotations__", ())]
        defaults = [members.pop(field) for field in fields if field in members]
        made: type = _make(name, fields, defaults=defaults, module=members["__module__"])
        for member, value in members.items():
            if member not in ("__dict__", "__weakref__"):
                setattr(made, member, value)
        return made


NamedTuple = type.__new__(_Named, "NamedTuple", (), {})


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    replaced = sys.modules.pop("typing")
    try:
        import typing
    finally:
        sys.modules["typing"] = replaced
    return getattr(typing, name)
