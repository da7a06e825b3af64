"""What a tar stream holds, beside the place where it belongs, until all of it has come."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile
from typing import Any, List, Tuple

from .files_wire import Refusal, Wire
from .placing import Mount, Placing, mount_of
from .writing import FolderLock, make_folders

_STAGING = b".svc-upload-"
_COPY_BYTES = 256 * 1024
_PRIVATE = 0o700
_OPEN = 0o755
_LATEST = 1 << 33
"""A time in the year 2242; what claims to be later is not believed."""


# No part of what typeshed knows of the module.
_DAMAGED: Any = (
    getattr(tarfile, "InvalidHeaderError"),  # noqa: B009
    getattr(tarfile, "TruncatedHeaderError"),  # noqa: B009
)
_NO_HEADER: Any = getattr(tarfile, "EmptyHeaderError")  # noqa: B009


class _Member(tarfile.TarInfo):
    """A member whose header is damaged or missing, which is a fault.

    `tarfile` takes both for the end of the archive. That is a block of zeros: what was cut off
    behind one of its members has none.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "_Member":
        try:
            return super().fromtarfile(archive)
        except _NO_HEADER:
            raise tarfile.ReadError("the block of zeros at its end is missing") from None
        except _DAMAGED as error:
            raise tarfile.ReadError(str(error)) from None


class Unpacked:
    """A folder inside the target that holds what came. Raises OSError; `made`: the new folders."""

    def __init__(self, target: bytes, made: List[bytes]) -> None:
        self.files = 0
        self._target = target
        self._folders: List[Tuple[bytes, int, float]] = []
        made += make_folders(target)
        name = _STAGING + os.urandom(8).hex().encode("ascii")
        self._staging = os.path.join(target, name)
        os.mkdir(self._staging, _PRIVATE)

    @property
    def size(self) -> int:
        """How many bytes the tar had."""
        return self._source.size

    @property
    def sha256(self) -> str:
        """Its hash."""
        return self._source.summed.hexdigest()

    def take(self, wire: Wire) -> None:
        """Unpack all that comes; raises Refusal for what is no tar or leaves its folder."""
        source: Any = _Source(wire)
        self._source: _Source = source
        try:
            with tarfile.open(
                fileobj=source,
                mode="r|",
                bufsize=_COPY_BYTES,
                encoding="utf-8",
                errors="surrogateescape",
                tarinfo=_Member,
            ) as archive:
                forget = vars(archive)["members"].clear  # it would keep them all
                while True:
                    member = archive.next()
                    if member is None:
                        break
                    self._take_one(archive, member)
                    forget()
        except (tarfile.TarError, ValueError, EOFError) as error:
            raise _bad(f"This is not a valid tar archive: {error}.") from None
        self._source.finish()

    def _take_one(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts:
            return
        if not 0 <= member.mtime < _LATEST:  # also what is no number
            member.mtime = 0
        place = self._made_parent(parts)
        if member.isdir():
            _make_folder(place)
            self._folders.append((b"/".join(parts), member.mode & 0o777, member.mtime))
            return
        if os.path.lexists(place):
            if os.path.isdir(place) and not os.path.islink(place):
                raise _bad("A name in it is used both for a folder and for a file.")
            os.unlink(place)
        if member.issym():
            os.symlink(os.fsencode(member.linkname), place)
        elif member.islnk():
            linked = _parts(member.linkname)
            source = os.path.join(self._staging, *linked)
            if linked:
                self._made_parent(linked)
            if not linked or not os.path.lexists(source):
                raise _bad("A hard link in it points to nothing that came before it.")
            os.link(source, place, follow_symlinks=False)
        elif member.isreg():
            self._write(archive, member, place)
        else:
            raise _bad(
                "It contains a device or a FIFO; only files, folders and links are accepted."
            )
        self.files += 1

    def _made_parent(self, parts: List[bytes]) -> bytes:
        """The place of a member, below folders that are none of the archive's own links."""
        at = self._staging
        for part in parts[:-1]:
            at = os.path.join(at, part)
            _make_folder(at)
        return os.path.join(at, parts[-1])

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo, place: bytes) -> None:
        content = archive.extractfile(member)
        if content is None:
            raise _bad("A file in it has no content.")
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with content, open(os.open(place, flags, _PRIVATE), "wb") as file:
            shutil.copyfileobj(content, file, _COPY_BYTES)
            file.flush()
            os.fchmod(file.fileno(), member.mode & 0o777)
        if os.lstat(place).st_size != member.size:
            raise _bad("It ends in the middle of a file.")
        os.utime(place, (member.mtime, member.mtime))

    def require_room(self) -> None:
        """Raise Refusal or OSError when something is in the way of a part of it."""
        self._moves(self._staging, self._target)

    def place(self) -> None:
        """Move all of it to where it belongs, or nothing; raises as `require_room`."""
        with FolderLock(self._target):
            placing = Placing(self._staging)
            try:
                for source, target in self._moves(self._staging, self._target):
                    placing.move(source, target)
            except BaseException:
                placing.undo()
                raise
            # Last, as nothing goes into a folder that is read-only; those inside first.
            for name, mode, modified in reversed(self._folders):
                folder = os.path.join(self._target, name)
                try:
                    os.chmod(folder, mode)
                    os.utime(folder, (modified, modified))
                except PermissionError:
                    pass  # it was there before and is somebody else's, who decides that

    def _moves(self, source: bytes, target: bytes) -> List[Tuple[bytes, bytes]]:
        """What is renamed to what: as much at once as nothing is in the way of."""
        moves: List[Tuple[bytes, bytes]] = []
        folders = [(source, target)]
        home = mount_of(target)
        while folders:
            source, target = folders.pop()
            names = os.listdir(source)
            if names:
                _require_reachable(target, home)
            for name in names:
                inside, outside = os.path.join(source, name), os.path.join(target, name)
                comes_folder = stat.S_ISDIR(os.lstat(inside).st_mode)
                try:
                    is_folder = stat.S_ISDIR(os.lstat(outside).st_mode)
                except FileNotFoundError:
                    moves.append((inside, outside))
                    continue
                if comes_folder != is_folder:
                    message = f"{_shown(outside)} is a folder on one side and not on the other."
                    raise Refusal("file-exists", message)
                if comes_folder:
                    folders.append((inside, outside))
                else:
                    moves.append((inside, outside))
        return moves

    def discard(self) -> None:
        """Remove what has not been moved."""
        shutil.rmtree(os.fsdecode(self._staging), ignore_errors=True)


def _require_reachable(folder: bytes, home: Mount) -> None:
    """Raise Refusal for a folder into which nothing can be renamed."""
    if mount_of(folder) != home:
        message = f"{_shown(folder)} is on another disk; unpack its files there separately."
        raise Refusal("file-other-disk", message)
    if not os.access(folder, os.W_OK | os.X_OK):
        message = f"The workspace's user may not write into {_shown(folder)}."
        raise Refusal("file-permission-denied", message)


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "replace")


def _parts(name: str) -> List[bytes]:
    """A name in an archive as the names of its path; raises Refusal for one that leads out."""
    raw = os.fsencode(name)
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if raw.startswith(b"/") or b".." in parts or b"\0" in raw:
        raise _bad("A name in it leads out of the folder or contains a NUL.")
    return parts


def _make_folder(place: bytes) -> None:
    try:
        os.mkdir(place, _OPEN)  # around it is the private one that all is in
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            raise _bad("A name in it goes through a link or a file of its own.") from None


def _bad(message: str) -> Refusal:
    return Refusal("bad-archive", message)


class _Source:
    """The bytes of the tar as they come, for `tarfile`."""

    def __init__(self, wire: Wire) -> None:
        self.size = 0
        self.summed = hashlib.sha256()
        self._pieces = wire.data()
        self._left = b""

    def read(self, count: int) -> bytes:
        """At most so many bytes; none at the end."""
        if not self._left:
            self._left = bytes(next(self._pieces, b""))
            self.size += len(self._left)
            self.summed.update(self._left)
        found, self._left = self._left[:count], self._left[count:]
        return found

    def finish(self) -> None:
        """Take what follows the end of the tar."""
        while self.read(_COPY_BYTES):
            pass
