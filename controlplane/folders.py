"""Removing folders: what a stranger has filled, and what a process that was killed left.

A folder for temporary files is locked by the process that uses it; the kernel lets go of the lock
when that process ends, however it ends, and :func:`sweep_scratch` removes what nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SCRATCH: Final = "svc-scratch-"


def remove_tree(folder: Path) -> None:
    """Remove ``folder`` and everything in it, as far as possible; one that is absent is fine.

    ``shutil.rmtree`` of Python 3.11 recurses once per level, so a repository nested a thousand
    levels deep would end in a ``RecursionError`` and stay. ``rm`` knows no such limit, and it
    follows no symbolic link.
    """
    subprocess.run(["rm", "-rf", "--", str(folder)], capture_output=True, check=False)


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Yield a new private folder for temporary files, and remove it afterwards.

    Raises ``OSError`` when it cannot be made.
    """
    place, lock = _locked_folder(purpose)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


def sweep_scratch() -> int:
    """Remove the folders of :func:`scratch_folder` that dead processes left; return how many."""
    removed = 0
    try:
        root = Path(tempfile.gettempdir())
    except OSError:
        return removed  # nothing can be written, so nothing was left
    for place in root.glob(f"{_SCRATCH}*"):
        try:
            lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(lock).st_uid != os.geteuid():
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(place)
            removed += not place.exists()
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
    return removed


def _locked_folder(purpose: str) -> tuple[Path, int]:
    while True:
        place = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{purpose}-"))
        try:
            lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # swept before it could be locked
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            return place, lock
        os.close(lock)
