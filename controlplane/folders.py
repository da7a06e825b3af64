"""Removing folders: what a stranger has filled, and what a process that was killed left.

A folder for work in progress is locked by the process that uses it; the kernel lets go of the lock
when that process ends, however it ends, and :func:`sweep_folders` removes what nobody holds. The
set-up in ``deploy`` uses this too, so nothing but Python's own library is needed here.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
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
def locked_folder(
    root: Path, prefix: str, *, remove: Callable[[Path], None] = remove_tree
) -> Iterator[Path]:
    """Yield a new private folder below ``root`` that is locked, and remove it afterwards.

    Raises ``OSError`` when it cannot be made.
    """
    place, lock = _made_and_locked(root, prefix)
    try:
        yield place
    finally:
        remove(place)
        os.close(lock)


def sweep_folders(
    root: Path,
    prefix: str,
    *,
    older_than: float | None = None,
    remove: Callable[[Path], None] = remove_tree,
) -> int:
    """Remove the folders of :func:`locked_folder` that dead processes left; return how many.

    Only this account's, and only those last changed more than ``older_than`` seconds ago.
    """
    removed = 0
    newest = None if older_than is None else time.time() - older_than
    for place in root.glob(f"{prefix}*"):
        try:
            lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            facts = os.fstat(lock)
            if facts.st_uid != os.geteuid() or (newest is not None and facts.st_mtime > newest):
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(place)
            removed += not place.exists()
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
    return removed


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Yield a new private folder for temporary files, and remove it afterwards.

    Raises ``OSError`` when it cannot be made.
    """
    root = Path(tempfile.gettempdir())
    with locked_folder(root, f"{_SCRATCH}{purpose}-", remove=_remove_small) as place:
        yield place


def sweep_scratch() -> int:
    """Remove the folders of :func:`scratch_folder` that dead processes left; return how many."""
    try:
        root = Path(tempfile.gettempdir())
    except OSError:
        return 0  # nothing can be written, so nothing was left
    return sweep_folders(root, _SCRATCH)


def _remove_small(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)  # no process for a few files


def _made_and_locked(root: Path, prefix: str) -> tuple[Path, int]:
    while True:
        place = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        try:
            lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # swept before it could be locked
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            return place, lock
        os.close(lock)
