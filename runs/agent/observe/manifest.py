"""What lies below a folder: path, mode, size and, where it is not too big, a hash of each file.

Paths are relative, as `os.fsdecode` gives them.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

PRUNED = frozenset(
    (
        *(".git", ".hg", ".svn", ".jj"),
        *("node_modules", ".venv", "venv", "__pycache__", "target", ".cache", ".tox", ".gradle"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".next", ".nuxt", ".turbo"),
    )
)
"""Folders that hold what tools make from the rest; not looked into where no repository says what
is ignored."""

MOST_FILES = 500_000
_GITLINK = 0o160000
# A file's times are only trusted when they lie this far before they were read: within the
# granularity of the clock a change leaves no trace in them.
_RACY_NS = 2_000_000_000


class TooMuch(Exception):
    """More than a manifest may hold; the message says what."""


class Entry(NamedTuple):
    """One file, symbolic link or nested repository. `hash`: None where it was not computed."""

    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    hash: Optional[str]

    @property
    def shown_mode(self) -> str:
        """The mode in octal, kind included; of links only the kind, as their rest has no use."""
        if stat.S_ISREG(self.mode):
            return format(self.mode, "o")
        return format(stat.S_IFMT(self.mode), "o")

    @property
    def is_nested(self) -> bool:
        """Whether it is a repository in the repository, known by its commit alone."""
        return self.mode == _GITLINK

    def has_content_of(self, other: Entry) -> bool:
        """Whether both are of one kind and hold the same."""
        if stat.S_IFMT(self.mode) != stat.S_IFMT(other.mode):
            return False
        if self.hash is not None and other.hash is not None:
            return self.hash == other.hash
        return (self.size, self.mtime_ns, self.hash) == (other.size, other.mtime_ns, other.hash)

    def is_same(self, other: Entry) -> bool:
        """Whether nothing differs that a change is reported for."""
        return self.shown_mode == other.shown_mode and self.has_content_of(other)


Manifest = Dict[str, Entry]
Hasher = Callable[[int, str, int], Any]


def plain_hasher(size: int, path: str, mode: int) -> Any:
    """SHA-256 of the content, for folders without a repository."""
    import hashlib  # not at every start: not every folder has a file

    return hashlib.sha256()


def nested_repository(commit: Optional[str]) -> Entry:
    """The entry of a repository in the repository."""
    return Entry(_GITLINK, 0, 0, 0, 0, commit)


class Reader:
    """Reads entries below `root`, hashing files up to `hash_bytes`.

    What has not changed since `earlier`, taken at `earlier_ns`, is not read again.
    """

    def __init__(
        self,
        root: str,
        hasher: Hasher,
        hash_bytes: int,
        earlier: Manifest,
        earlier_ns: int,
    ) -> None:
        self._root = root
        self._hasher = hasher
        self._hash_bytes = hash_bytes
        self._earlier = earlier
        self._trusted_ns = earlier_ns - _RACY_NS
        self._folders: Dict[str, bool] = {"": True}

    def entry(self, path: str) -> Optional[Entry]:
        """The file or symbolic link at `path`; None when there is nothing of the kind."""
        if not self._is_folder(os.path.dirname(path)):
            return None
        place = os.path.join(self._root, path)
        try:
            found = os.lstat(place)
        except OSError:
            return None
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            return None
        hash_hex = self._known(path, found)
        if hash_hex is None and found.st_size <= self._hash_bytes:
            try:
                content_hash, found = self._hash(place, path, found)
                hash_hex = content_hash
            except OSError:
                hash_hex = None
        return Entry(
            found.st_mode,
            found.st_size,
            found.st_mtime_ns,
            found.st_ctime_ns,
            found.st_ino,
            hash_hex,
        )

    def all(self, paths: Iterable[str]) -> Manifest:
        """The entries of those of `paths` that exist."""
        entries: Manifest = {}
        for path in paths:
            entry = self.entry(path)
            if entry is not None:
                entries[path] = entry
                if len(entries) > MOST_FILES:
                    raise TooMuch(f"more than {MOST_FILES} files")
        return entries

    def content(self, path: str) -> Optional[bytes]:
        """The bytes of a file or the target of a link; None when it cannot be read."""
        place = os.path.join(self._root, path)
        try:
            found = os.lstat(place)
            if stat.S_ISLNK(found.st_mode):
                return os.fsencode(os.readlink(place))
            with _open(place) as file:
                data: bytes = file.read(self._hash_bytes + 1)
        except OSError:
            return None
        return data if len(data) <= self._hash_bytes else None

    def _is_folder(self, path: str) -> bool:
        """Whether the way to `path` leads through no symbolic link."""
        known = self._folders.get(path)
        if known is None:
            try:
                mode = os.lstat(os.path.join(self._root, path)).st_mode
            except OSError:
                mode = 0
            known = stat.S_ISDIR(mode) and self._is_folder(os.path.dirname(path))
            self._folders[path] = known
        return known

    def _known(self, path: str, found: os.stat_result) -> Optional[str]:
        earlier = self._earlier.get(path)
        if earlier is None or found.st_ctime_ns >= self._trusted_ns:
            return None
        now = (found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        return earlier.hash if now == earlier[:5] else None

    def _hash(
        self, place: str, path: str, found: os.stat_result
    ) -> Tuple[Optional[str], os.stat_result]:
        if stat.S_ISLNK(found.st_mode):
            target = os.fsencode(os.readlink(place))
            hasher = self._hasher(len(target), path, found.st_mode)
            hasher.update(target)
            return hasher.hexdigest(), found
        with _open(place) as file:
            found = os.fstat(file.fileno())
            hasher = self._hasher(found.st_size, path, found.st_mode)
            left = found.st_size
            while left > 0:
                part = file.read(min(left, 1 << 20))
                if not part:
                    # It got shorter meanwhile: what was hashed never existed as a whole.
                    return None, found
                hasher.update(part)
                left -= len(part)
        return hasher.hexdigest(), found


def _open(place: str) -> Any:
    fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a file")
    return os.fdopen(fd, "rb", buffering=0)


def walk(root: str) -> Iterator[str]:
    """The paths of all files and links below `root`, but for those in pruned folders."""
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(os.path.join(root, folder)))
        except OSError:
            continue
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in PRUNED:
                    pending.append(path)
            else:
                yield path


def changed_paths(before: Manifest, after: Manifest) -> List[str]:
    """The paths whose entries differ, in the order of their bytes."""
    paths = [
        path
        for path in before.keys() | after.keys()
        if path not in before or path not in after or not before[path].is_same(after[path])
    ]
    return sorted(paths, key=os.fsencode)
