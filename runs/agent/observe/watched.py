"""The folders that are watched: which number stands for which path, and what is below a new one.

Folders are opened before they are watched or listed, and only those that truly lie below the root
are: a name could have become a link elsewhere meanwhile.
"""

from __future__ import annotations

import errno
import os
from typing import Dict, Iterator, List, Optional, Set, Tuple

from . import inotify
from .inotify import Inotify
from .manifest import PRUNED

MOST_WATCHES = 20_000
_MASK = (
    inotify.CREATE
    | inotify.DELETE
    | inotify.MOVED_FROM
    | inotify.MOVED_TO
    | inotify.MODIFY
    | inotify.ATTRIB
    | inotify.EXCL_UNLINK
    | inotify.ONLYDIR
)
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

Found = Tuple[bytes, bool]


class Watched:
    """Paths are bytes relative to the root, which itself is empty. `limit`: why some are not."""

    def __init__(self, root: str, ignored: Set[str], most: int = MOST_WATCHES) -> None:
        """Raises OSError when nothing can be watched at all."""
        self._root = os.path.realpath(os.fsencode(root))
        self._ignored = {os.fsencode(path) for path in ignored}
        self._pruned = {os.fsencode(name) for name in PRUNED}
        self._most = most
        self._paths: Dict[int, bytes] = {}
        self._numbers: Dict[bytes, int] = {}
        self.limit: Optional[str] = None
        self.inotify = Inotify()

    def __len__(self) -> int:
        return len(self._paths)

    def path_of(self, number: int) -> Optional[bytes]:
        """The folder that a watch stands for now."""
        return self._paths.get(number)

    def is_watched(self, path: bytes) -> bool:
        """Whether there is a watch on this folder."""
        return path in self._numbers

    def wants(self, path: bytes) -> bool:
        """Whether a folder is one that is watched, if there are watches left."""
        return os.path.basename(path) not in self._pruned and path not in self._ignored

    def add(self, path: bytes) -> Iterator[Found]:
        """Watch a folder and all below; gives what is found in them, and whether it is a folder."""
        pending = [path]
        while pending:
            folder = pending.pop()
            for name, is_folder in self._add_one(folder):
                inner = os.path.join(folder, name)
                wanted = is_folder and self.wants(inner)
                if wanted:
                    pending.append(inner)
                yield inner, is_folder

    def moved(self, old: bytes, new: bytes) -> None:
        """A folder has another path now, with everything in it."""
        for path in self._below(old):
            number = self._numbers.pop(path)
            changed = new + path[len(old) :]
            self._numbers[changed] = number
            self._paths[number] = changed

    def remove(self, path: bytes) -> None:
        """Stop watching a folder and all below."""
        for inner in self._below(path):
            number = self._numbers.pop(inner)
            del self._paths[number]
            self.inotify.unwatch(number)

    def forget(self, number: int) -> None:
        """The kernel has ended a watch."""
        path = self._paths.pop(number, None)
        if path is not None and self._numbers.get(path) == number:
            del self._numbers[path]

    def place_of(self, path: bytes) -> bytes:
        """The absolute path."""
        return os.path.join(self._root, path)

    def remove_all(self) -> None:
        """Stop watching anything."""
        for number in list(self._paths):
            self.inotify.unwatch(number)
        self._paths.clear()
        self._numbers.clear()

    def _below(self, path: bytes) -> List[bytes]:
        start = path + b"/"
        return [inner for inner in self._numbers if inner == path or inner.startswith(start)]

    def _add_one(self, folder: bytes) -> List[Found]:
        place = os.path.join(self._root, folder) if folder else self._root
        try:
            fd = os.open(place, _OPEN)
        except OSError:
            return []
        try:
            if os.readlink(b"/proc/self/fd/%d" % fd) != place:
                return []
            if not self._watch(folder, fd):
                return []
            # Listed only now: what is made later gives a notice.
            found = []
            with os.scandir(fd) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    found.append((name, entry.is_dir(follow_symlinks=False)))
            return found
        except OSError:
            return []
        finally:
            os.close(fd)

    def _watch(self, folder: bytes, fd: int) -> bool:
        if len(self._paths) >= self._most:
            self.limit = f"more than {self._most} folders"
            return False
        try:
            number = self.inotify.watch(fd, _MASK)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.limit = f"the system gives no more than {len(self._paths)} watches"
            return False
        self.forget(number)
        earlier = self._numbers.get(folder)
        if earlier is not None:
            self._paths.pop(earlier, None)
        self._paths[number] = folder
        self._numbers[folder] = number
        return True
