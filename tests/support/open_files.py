"""Which files of a folder this process has open, whatever else it opens and closes meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path


def open_below(folder: Path) -> list[Path]:
    """Return what each descriptor of this process stands for that is a folder or below it, sorted.

    A file that is open twice is there twice, and one that was deleted or replaced is there as well.
    """
    return sorted(path for path in _all_open() if path.is_relative_to(folder.resolve()))


def opened_since(before: Counter[Path]) -> Counter[Path]:
    """Return what this process has open that it had not ``before``: all of it before nothing.

    What somebody else's code, or the collector of garbage, has closed meanwhile changes nothing.
    """
    return Counter(_all_open()) - before


def _all_open() -> list[Path]:
    listed = Path(f"/proc/{os.getpid()}/fd")
    found = []
    for descriptor in listed.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found.append(descriptor.readlink())
    return [path for path in found if path != listed]


def path_of(descriptor: int) -> Path:
    """Return which file a descriptor stands for."""
    return Path(f"/proc/self/fd/{descriptor}").readlink()
