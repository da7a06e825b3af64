"""Real disks for bad days: small ones that are soon full, and ones that nobody may write to.

They are memory, mounted for the time of a block; that takes root, as the engine's tests do.
"""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(place: Path, size: str, *, options: str = "") -> Iterator[Path]:
    """Mount an empty disk of this size on a folder, made where there is none."""
    place.mkdir(parents=True, exist_ok=True)
    given = ",".join(filter(None, [f"size={size}", options]))
    subprocess.run(["mount", "-t", "tmpfs", "-o", given, "tmpfs", place], check=True)
    try:
        yield place
    finally:
        # At once for everybody, and for those who still have a file of it open when they close it.
        subprocess.run(["umount", "--lazy", place], check=True)


@contextlib.contextmanager
def read_only(place: Path) -> Iterator[Path]:
    """Have nobody, root included, write to what lies in a folder."""
    subprocess.run(["mount", "--bind", place, place], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path) -> Path:
    """Leave no room on the disk of a folder; return the file that takes it, for removal."""
    ballast = place / "ballast"
    for size in (1 << 20, 1 << 12, 1):
        with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(size))
    try:
        with ballast.open("ab", buffering=0) as file:
            file.write(b"x")
    except OSError as error:
        assert error.errno == errno.ENOSPC
        return ballast
    raise AssertionError(f"{place} still has room")
