"""Changing files: each change is recorded just before it happens, and is whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Dict, List, Optional, Type

from ..record.event_meta import text_of
from .access import AccessLog
from .entries import (
    ABSENT,
    Conditions,
    Present,
    digest,
    open_regular,
    require_regular,
    version_of,
)
from .files_wire import END, HEAD, Refusal, Wire
from .renaming import rename_new

_NEW_MODE = 0o644
_LOCK_SECONDS = 30.0
_LOCK_LOOK_SECONDS = 0.02
_TEMPORARY = b".svc-upload-"
# Where a file without a name is not to be had.
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)


def write(wire: Wire, log: AccessLog, spec: Dict[str, Any], path: bytes) -> None:
    """Store a file under a name that then is the old content or the new one, and nothing else.

    Through a link the file is replaced that the link leads to. Missing folders are made.
    """
    conditions = Conditions.of(spec)
    target = os.path.realpath(path)
    if path.endswith(b"/"):
        raise Refusal("not-a-file", "A path that ends in a slash names a folder.")
    folder = os.path.dirname(target)
    present = _present(wire, target, conditions)
    _require_writable(target)
    conditions.check(present)
    made = make_folders(folder)
    stored = False
    try:
        with Upload(folder) as upload:
            wire.send_json(HEAD, {})
            for piece in wire.data():
                upload.write(piece)
            sha256 = upload.finish(_mode(spec, present))
            change = log.change("write", target, size=upload.size, sha256=sha256)
            with ExitStack() as changing:
                with FolderLock(folder):
                    now = _present(wire, target, conditions, known=present)
                    _require_writable(target)
                    conditions.check(now)
                    changing.enter_context(change)
                    upload.place(target, new=conditions.creates)
                    stored = True
                _sync_folder(folder)
    finally:
        if not stored:
            remove_made(made)
    told = {"size": upload.size, "sha256": sha256, "created": now.version is None}
    wire.send_json(END, told)


def _mode(spec: Dict[str, Any], present: Present) -> int:
    given = spec.get("mode")
    if given is not None:
        return int(given) & 0o777
    return _NEW_MODE if present.version is None else present.mode & 0o777


def _require_writable(target: bytes) -> None:
    """A file that nobody may write to is not replaced, although its folder would allow it."""
    if not os.access(target, os.W_OK) and os.path.exists(target):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _present(wire: Wire, target: bytes, conditions: Conditions, known: Present = ABSENT) -> Present:
    try:
        status = os.stat(target)
    except FileNotFoundError:
        return ABSENT
    require_regular(status)
    version = version_of(status)
    if not conditions.needs_hash:
        return Present(version, status.st_mode, None)
    if version == known.version:
        return known
    fd = open_regular(target)
    try:
        opened = os.fstat(fd)
        return Present(version_of(opened), opened.st_mode, digest(fd, opened.st_size, wire))
    finally:
        os.close(fd)


class Upload:
    """A file that is not at its place yet. Whatever ends the block before that leaves nothing."""

    def __init__(self, folder: bytes) -> None:
        self.size = 0
        self._folder = folder
        self._summed = hashlib.sha256()
        self._name: Optional[bytes] = None
        try:
            # It has no name until it is whole, so that not even a killed process leaves it behind.
            self._fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in _NO_NAMELESS or not os.path.isdir(folder):
                raise
            name = self._fresh_name()
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(name, flags, 0o600)
            self._name = name

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        os.close(self._fd)
        if self._name is not None:
            _unlink(self._name)

    def write(self, piece: memoryview) -> None:
        """Append; raises OSError."""
        self._summed.update(piece)
        self.size += len(piece)
        while piece:
            piece = piece[os.write(self._fd, piece) :]

    def finish(self, mode: int) -> str:
        """Have the disk take all of it; return its SHA-256."""
        os.fchmod(self._fd, mode)
        os.fsync(self._fd)
        return self._summed.hexdigest()

    def place(self, target: bytes, *, new: bool) -> None:
        """Give it its name. `new`: raises Refusal when somebody else was first."""
        if new:
            try:
                self._link(target)
            except FileExistsError:
                raise Refusal("precondition-failed", "The file already exists.") from None
            return
        if self._name is None:
            name = self._fresh_name()
            self._link(name)
            self._name = name
        os.replace(self._name, target)
        self._name = None

    def _link(self, name: bytes) -> None:
        if self._name is None:
            # With a folder to begin at, which is of no use here, the link is really followed.
            os.link(b"/proc/self/fd/%d" % self._fd, name, src_dir_fd=self._fd, follow_symlinks=True)
        else:
            os.link(self._name, name)

    def _fresh_name(self) -> bytes:
        return os.path.join(self._folder, _TEMPORARY + os.urandom(8).hex().encode("ascii"))


class FolderLock:
    """Holds off other calls that change the same folder; raises Refusal when one takes too long."""

    def __init__(self, folder: bytes) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until:
                    os.close(self._fd)
                    message = "Another program has locked the folder; try again."
                    raise Refusal("file-in-use", message) from None
            time.sleep(_LOCK_LOOK_SECONDS)

    def __exit__(self, *ended: object) -> None:
        os.close(self._fd)


def remove(wire: Wire, log: AccessLog, spec: Dict[str, Any], path: bytes) -> None:
    """Remove a file, a link or an empty folder; with `recursive` a folder with all in it."""
    place = path.rstrip(b"/") or b"/"
    status = os.lstat(place)
    is_folder = stat.S_ISDIR(status.st_mode)
    if place != path and not is_folder:
        # What follows the slash of a link is what it leads to, which nobody asked to remove.
        message = "A path that ends in a slash names a folder, and this is not one."
        raise Refusal("not-a-directory", message)
    conditions = Conditions.of(spec)
    if is_folder:
        conditions.check(Present(version_of(status), status.st_mode, None))
        _remove_folder(log, os.path.realpath(place), bool(spec.get("recursive")))
    else:
        with FolderLock(os.path.dirname(place) or b"/"):
            if conditions.match is not None or conditions.none_match is not None:
                conditions.check(_present(wire, place, conditions))
            with log.change("remove", place, size=status.st_size):
                os.unlink(place)
    wire.send_json(HEAD, {})


def _remove_folder(log: AccessLog, place: bytes, recursive: bool) -> None:
    if place == b"/":
        raise Refusal("file-permission-denied", "The root folder cannot be removed.")
    if not recursive and _has_entries(place):
        raise Refusal("directory-not-empty", "The folder is not empty; use recursive=true.")
    with log.change("remove", place, recursive=recursive):
        if not recursive:
            os.rmdir(place)
            return
        # Its import takes more memory than all else of a call.
        import shutil

        # Of a path in bytes it makes a mixture of both.
        shutil.rmtree(os.fsdecode(place))


def _has_entries(path: bytes) -> bool:
    with os.scandir(path) as found:
        return next(found, None) is not None


def move(wire: Wire, log: AccessLog, spec: Dict[str, Any], path: bytes) -> None:
    """Give something another name on the same disk; what is there is replaced only if so told."""
    target = spec["to"].rstrip(b"/") or b"/"
    source = path.rstrip(b"/") or b"/"
    os.lstat(source)
    with FolderLock(os.path.dirname(target) or b"/"):
        if os.path.lexists(target) and not spec.get("overwrite"):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        with log.change("move", source, to=text_of(target)):
            try:
                if spec.get("overwrite"):
                    os.replace(source, target)
                else:
                    rename_new(source, target)  # programs of the workspace ask for no lock
            except OSError as error:
                raise _of_move(error) from None
    wire.send_json(HEAD, {})


def _of_move(error: OSError) -> Exception:
    if error.errno == errno.EINVAL:
        return Refusal("bad-path", "A folder cannot be moved into itself.")
    if error.errno in (errno.EISDIR, errno.ENOTDIR):
        return Refusal("file-exists", "A file cannot replace a folder, nor a folder a file.")
    return error


def make_folder(wire: Wire, log: AccessLog, spec: Dict[str, Any], path: bytes) -> None:
    """Create a folder; with `parents` those above it too, and one that is there is fine."""
    with log.change("mkdir", path):
        if spec.get("parents"):
            make_folders(path)
        else:
            os.mkdir(path)
    wire.send_json(HEAD, {})


def make_folders(folder: bytes) -> List[bytes]:
    """Make what is missing of a folder's path; return it, from the outside in."""
    missing = []
    at = folder.rstrip(b"/") or b"/"
    while not os.path.lexists(at):
        missing.append(at)
        at = os.path.dirname(at)
    made: List[bytes] = []
    try:
        for each in reversed(missing):
            try:
                os.mkdir(each)
            except FileExistsError:
                continue
            made.append(each)
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError:
        remove_made(made)
        raise
    return made


def remove_made(folders: List[bytes]) -> None:
    """Take back new folders, unless somebody has put something into them."""
    for folder in reversed(folders):
        try:
            os.rmdir(folder)
        except OSError:
            pass


def _unlink(name: bytes) -> None:
    try:
        os.unlink(name)
    except OSError:
        pass


def _sync_folder(folder: bytes) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
