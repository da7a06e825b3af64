"""What the scripts print: lines of the package manager between marks of our own.

::

    svc:architecture amd64
    svc:section candidates
    …
    svc:section versions
    …
    svc:end

A listing without its last line was cut off, whatever the exit code was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_MARK: Final = "svc:"
MAX_LINE: Final = 1024 * 1024
"""Characters; a longer line is no line of a package manager."""


class MalformedIndexError(Exception):
    """What the package manager said cannot be its whole index; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One version of one package. The first offer of a name is what is installed by default."""

    name: str
    version: str
    repository: str = ""
    provides: tuple[str, ...] = ()


class Listing:
    """The lines of a listing, to be gone through once."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        key, _, self.architecture = next(self._lines, "").strip().partition(" ")
        if key != f"{_MARK}architecture" or not 0 < len(self.architecture) <= 32:
            raise MalformedIndexError("The listing does not begin with an architecture.")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield each line with the section that it is in."""
        section = ""
        for line in self._lines:
            if len(line) > MAX_LINE:
                raise MalformedIndexError("The listing has a line without end.")
            text = line.rstrip("\n")
            if not text.startswith(_MARK):
                yield section, text
            elif text == f"{_MARK}end":
                return
            elif text.startswith(f"{_MARK}section "):
                section = text.partition(" ")[2]
            else:
                raise MalformedIndexError("The listing has a mark that nobody knows.")
        raise MalformedIndexError("The listing was cut off before its end.")


class Candidates:
    """Remembers the versions that were offered first, so that none is offered twice."""

    def __init__(self) -> None:
        self._versions: dict[str, str] = {}

    def is_new(self, name: str, version: str) -> bool:
        """Tell whether this is not the first offer of its name over again; remember the first."""
        return self._versions.setdefault(name, version) != version

    def add(self, name: str, version: str) -> None:
        """Remember the first offer of ``name``."""
        self._versions.setdefault(name, version)
