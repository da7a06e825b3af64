"""Folders for work in progress: private, named after their job, and gone afterwards.

A worker that is killed leaves its folder behind. Every folder is therefore locked by the process
that uses it; the kernel lets go of the lock when that process ends, however it ends, and
:func:`sweep_leftovers` removes what nobody holds any more.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from controlplane.folders import remove_tree

_PREFIX = "svc-"


class NoWorkplaceError(Exception):
    """The folder for work in progress cannot be written; the message says why, on one line."""


def make_root(root: Path) -> None:
    """Make the folder that all work lies below. Raises :class:`NoWorkplaceError`.

    One that is full is no reason to end: what is stopped and deleted needs no room.
    """
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(root, os.W_OK):
            code = errno.EROFS if os.statvfs(root).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(code, os.strerror(code))
    except OSError as error:
        raise NoWorkplaceError(
            f"The folder {root} cannot be written: {error.strerror or 'unknown error'}."
            " SVC_DATA_DIR says where it lies."
        ) from error


@contextmanager
def workplace(root: Path, purpose: str, job_id: UUID, attempt_count: int) -> Iterator[Path]:
    """Yield a new folder below ``root`` that only this account can enter; remove it afterwards."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    prefix = f"{_PREFIX}{purpose}-{job_id}-{attempt_count}-"
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place
    finally:
        remove_tree(place)
        os.close(lock)


def sweep_leftovers(root: Path, older_than: float) -> int:
    """Remove the folders that nobody holds and that are older than ``older_than`` seconds.

    Returns how many. Folders of this prefix that were made without a lock go by their age only.
    """
    removed = 0
    newest = time.time() - older_than
    for place in root.glob(f"{_PREFIX}*") if root.is_dir() else ():
        try:
            if place.is_symlink() or not place.is_dir() or place.stat().st_mtime > newest:
                continue
            lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(place)
            removed += not place.exists()
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
    return removed
