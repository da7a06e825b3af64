"""A folder for the files of a base image: removed when it is done, or by the next set-up.

It takes some hundred MB, often of memory. Whoever uses one holds its lock, which the kernel takes
back when that process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.services import engine

_PREFIX = "svc-debian-"


@contextmanager
def workplace(root: Path) -> Iterator[Path]:
    """Yield a new folder below `root` that others may read, and remove it afterwards."""
    sweep(root)
    place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only now may others see into it: a sweep leaves closed folders alone.
        place.chmod(0o755)
        yield place
    finally:
        _remove(place)
        os.close(lock)


def sweep(root: Path) -> int:
    """Remove what set-ups that were killed left below `root`; return how many folders."""
    removed = 0
    for place in root.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            facts = os.fstat(lock)
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o777 != 0o755:
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(place)
            removed += not place.exists()
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
    return removed


def _remove(place: Path) -> None:
    """Remove a folder; what debootstrap mounted below it is not what it shows."""
    engine.unmount(engine.mounts_below(place))
    shutil.rmtree(place, ignore_errors=True)
