"""Which files of a folder this process has open, whatever else it opens and closes meanwhile."""

from __future__ import annotations

import contextlib
from pathlib import Path


def open_below(folder: Path) -> list[Path]:
    """Return what each descriptor of this process stands for that is a folder or below it, sorted.

    A file that is open twice is there twice, and one that was deleted or replaced is there as well.
    """
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found.append(descriptor.readlink())
    return sorted(path for path in found if path.is_relative_to(folder.resolve()))


def path_of(descriptor: int) -> Path:
    """Return which file a descriptor stands for."""
    return Path(f"/proc/self/fd/{descriptor}").readlink()
