"""Folders for work in progress: private, named after their job, and gone afterwards.

A worker that is killed leaves its folder behind, unlocked, and :func:`sweep_leftovers` removes it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from controlplane.folders import locked_folder, sweep_folders

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
            " SVC_DATA_DIR sets its location."
        ) from error


@contextmanager
def workplace(root: Path, purpose: str, job_id: UUID, attempt_count: int) -> Iterator[Path]:
    """Yield a new folder below ``root`` that only this account can enter; remove it afterwards."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    prefix = f"{_PREFIX}{purpose}-{job_id}-{attempt_count}-"
    with locked_folder(root, prefix) as place:
        yield place


def sweep_leftovers(root: Path, older_than: float) -> int:
    """Remove the folders that nobody holds and that are older than ``older_than`` seconds.

    Returns how many.
    """
    return sweep_folders(root, _PREFIX, older_than=older_than)
