"""chezmoi's file names: which attributes a source name carries, and what the target is called.

The rules are those of chezmoi's reference, page "Source state attributes": prefixes in a fixed
order that depends on the type, `dot_` or `literal_` last, and for files the suffixes `.tmpl` and
`.literal`.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, List, NamedTuple, Tuple

_FILE_ATTRIBUTES: Tuple[str, ...] = ("encrypted", "private", "readonly", "empty", "executable")
_DIRECTORY_ATTRIBUTES: Tuple[str, ...] = ("remove", "external", "exact", "private", "readonly")

# What may follow the prefix that says the type of a file.
_TYPES: Dict[str, Tuple[str, ...]] = {
    "create": _FILE_ATTRIBUTES,
    "modify": ("encrypted", "private", "readonly", "executable"),
    "remove": (),
    "run": (),
    "symlink": (),
}


class SourceName(NamedTuple):
    """A parsed source name.

    `type` is `file`, `directory`, `create`, `modify`, `remove`, `run` or `symlink`.
    """

    target: str
    type: str
    attributes: FrozenSet[str]


def parse_directory(name: str) -> SourceName:
    """The meaning of a folder's name in the source."""
    rest, attributes = _take(name, _DIRECTORY_ATTRIBUTES)
    return SourceName(_undotted(rest), "directory", frozenset(attributes))


def parse_file(name: str) -> SourceName:
    """The meaning of a file's name; attribute `template` stands for the suffix `.tmpl`."""
    kind, rest, allowed = "file", name, _FILE_ATTRIBUTES
    for prefix, attributes in _TYPES.items():
        if name.startswith(prefix + "_"):
            kind, rest, allowed = prefix, name[len(prefix) + 1 :], attributes
            break
    rest, found = _take(rest, allowed)
    rest = _undotted(rest)
    if rest.endswith(".literal"):
        rest = rest[: -len(".literal")]
    elif rest.endswith(".tmpl"):
        found.append("template")
        rest = rest[: -len(".tmpl")]
    return SourceName(rest, kind, frozenset(found))


def _take(name: str, allowed: Tuple[str, ...]) -> Tuple[str, List[str]]:
    found = []
    for attribute in allowed:
        if name.startswith(attribute + "_"):
            found.append(attribute)
            name = name[len(attribute) + 1 :]
    return name, found


def _undotted(name: str) -> str:
    if name.startswith("dot_"):
        return "." + name[len("dot_") :]
    if name.startswith("literal_"):
        return name[len("literal_") :]
    return name
