"""A folder for the files of a base image: removed when it is done, or by the next set-up.

It takes some hundred MB, often of memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.folders import locked_folder, sweep_folders
from deploy.services import engine

_PREFIX = "svc-debian-"


@contextmanager
def workplace(root: Path) -> Iterator[Path]:
    """Yield a new folder below `root` that others may read, and remove it afterwards."""
    sweep(root)
    with locked_folder(root, _PREFIX, remove=_remove) as place:
        place.chmod(0o755)
        yield place


def sweep(root: Path) -> int:
    """Remove what set-ups that were killed left below `root`; return how many folders."""
    return sweep_folders(root, _PREFIX, remove=_remove)


def _remove(place: Path) -> None:
    """Remove a folder; what debootstrap mounted below it is not what it shows."""
    engine.unmount(engine.mounts_below(place))
    shutil.rmtree(place, ignore_errors=True)
