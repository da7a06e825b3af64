"""Renaming many things into place so that a failure on the way takes back those before it."""

from __future__ import annotations

import errno
import os
import stat
from typing import List, Optional, Tuple

Mount = Tuple[int, int]
_BACKUPS = b".before"


def mount_of(folder: bytes) -> Mount:
    """What differs between folders that nothing can be renamed between. Raises OSError.

    That is the mount, not the disk: of one disk there may be several, as of a workspace's volumes.
    """
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as told:
            found = [line.split()[1] for line in told if line.startswith(b"mnt_id:")]
        # Not every kernel tells.
        return os.fstat(fd).st_dev, int(found[0]) if found else 0
    finally:
        os.close(fd)


class Placing:
    """Renames of things in `staging`, which are taken back in the reverse order by `undo`."""

    def __init__(self, staging: bytes) -> None:
        self._backups = os.path.join(staging, _BACKUPS + os.urandom(8).hex().encode("ascii"))
        self._done: List[Tuple[bytes, Optional[bytes], bytes]] = []

    def move(self, source: bytes, target: bytes) -> None:
        """Rename; what is at `target` and no folder is replaced. Raises OSError."""
        backup = self._kept(target)
        os.replace(source, target)
        self._done.append((source, backup, target))

    def undo(self) -> None:
        """Put everything where it was; what the system refuses now stays as it is."""
        for source, backup, target in reversed(self._done):
            try:
                if backup is None:
                    os.replace(target, source)
                else:
                    os.replace(backup, target)
            except OSError:
                continue
        self._done.clear()

    def _kept(self, target: bytes) -> Optional[bytes]:
        """A second name of what is at `target`, so that it outlives being replaced."""
        try:
            status = os.lstat(target)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        os.makedirs(self._backups, 0o700, exist_ok=True)
        backup = os.path.join(self._backups, b"%d" % len(self._done))
        try:
            os.link(target, backup, follow_symlinks=False)
        except OSError:
            # A second name is not to be had of everybody's files, nor everywhere.
            os.replace(target, backup)
            self._done.append((target, backup, target))
        return backup
