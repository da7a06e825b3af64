"""Folders opened one component at a time, so that no symbolic link is ever followed.

A checkout may hold a link where the next file expects a folder, and so may the target. Every name
is looked up in an open folder (`dir_fd`) with O_NOFOLLOW; a link in the way is an error that names
it.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Iterator, Optional

from .errors import DotfilesError

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_COPY_BYTES = 1024 * 1024
_TEMPORARY = ".svc-dotfile.new"


class Folder:
    """An open folder. `shown` is its path for messages."""

    def __init__(self, descriptor: int, shown: str) -> None:
        self.fd = descriptor
        self.shown = shown

    @classmethod
    def open(cls, path: str) -> Folder:
        """Open a trusted path, following links."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)
        except OSError as error:
            raise DotfilesError(f"cannot open the directory {path}: {error.strerror}") from None

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.fd)

    def path_of(self, name: str) -> str:
        """The path of an entry, for messages."""
        return os.path.join(self.shown, name)

    def names(self) -> Iterator[str]:
        """The entries in sorted order."""
        return iter(sorted(os.listdir(self.fd)))

    def find(self, name: str) -> Optional[os.stat_result]:
        """What an entry is, links not followed; None when there is none."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def enter(self, name: str) -> Folder:
        """An existing folder below this one."""
        try:
            return Folder(os.open(name, _FOLDER_FLAGS, dir_fd=self.fd), self.path_of(name))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise DotfilesError(
                    f"{self.path_of(name)} is a symbolic link or a file, not a directory: "
                    "nothing is written through it"
                ) from None
            raise

    def make(self, name: str, mode: int) -> Folder:
        """A folder below this one, made with this mode when it is missing."""
        try:
            os.mkdir(name, mode, dir_fd=self.fd)
        except FileExistsError:
            return self.enter(name)
        folder = self.enter(name)
        os.fchmod(folder.fd, mode)
        return folder

    def open_file(self, name: str) -> int:
        """A regular file for reading; anything else is an error."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=self.fd)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise DotfilesError(f"{self.path_of(name)} is not a regular file")
        return descriptor

    def read(self, name: str) -> bytes:
        """The content of a regular file."""
        with os.fdopen(self.open_file(name), "rb") as file:
            return file.read()

    def put_file(self, name: str, source: int, mode: int) -> None:
        """Replace an entry, or the link that it is, by a copy of the open file `source`."""
        self._remove_leftover()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(_TEMPORARY, flags, 0o600, dir_fd=self.fd)
        try:
            while True:
                block = memoryview(os.read(source, _COPY_BYTES))
                if not block:
                    break
                while block:
                    block = block[os.write(descriptor, block) :]
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        self._move_into_place(name)

    def put_link(self, name: str, target: str) -> None:
        """Replace an entry by a symbolic link."""
        self._remove_leftover()
        os.symlink(target, _TEMPORARY, dir_fd=self.fd)
        self._move_into_place(name)

    def remove(self, name: str) -> None:
        """Remove an entry with everything below it; nothing happens when there is none."""
        found = self.find(name)
        if found is None:
            return
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=self.fd)
            return
        with self.enter(name) as folder:
            for below in folder.names():
                folder.remove(below)
        os.rmdir(name, dir_fd=self.fd)

    def _move_into_place(self, name: str) -> None:
        try:
            os.rename(_TEMPORARY, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as error:
            self._remove_leftover()
            if error.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
                raise DotfilesError(
                    f"{self.path_of(name)} is a directory where the dotfiles have a file"
                ) from None
            raise

    def _remove_leftover(self) -> None:
        try:
            os.unlink(_TEMPORARY, dir_fd=self.fd)
        except FileNotFoundError:
            pass
