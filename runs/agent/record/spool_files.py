"""What a writer fills: one segment after the other, and a reserve for the end of the record.

Nothing here knows of sequences or limits. That the disk is full is an answer; every other failure
is SpoolFailed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import List, Tuple

from .segments import DISK_FULL, RESERVE, SUMMARY, list_segments, segment_name, size_of
from .spool_folder import SpoolFailed, replace_in, unlink_in
from .spool_sync import BackgroundSync


class SegmentFiles:
    """The files of a spool's frames. The last one is written, the others wait to be freed.

    Public attributes: `size`, the bytes in the last segment; `closed`, how many wait.
    """

    def __init__(self, directory: int) -> None:
        self.size = 0
        self._directory = directory
        self._fd = -1
        self._name = ""
        self._closed: List[Tuple[str, int]] = []
        self._background = BackgroundSync()
        self._waits_for_disk = False
        """Something was written since somebody has waited for the disk."""

    @property
    def closed(self) -> int:
        return len(self._closed)

    def begin(self, first: int, *, durably: bool = True) -> None:
        """Go on in a new segment, whose name is durable then; raises OSError."""
        name = segment_name(first)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(name, flags, 0o600, dir_fd=self._directory)
        if self._fd >= 0:
            self._closed.append((self._name, self.size))
            os.close(self._fd)
        self._fd, self._name, self.size = fd, name, 0
        if durably:
            os.fsync(self._directory)

    def resume(self, name: str, size: int) -> int:
        """Go on behind the first `size` bytes of the last segment there is; what follows is cut.

        Returns the bytes of all segments. Raises OSError.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(name, flags, dir_fd=self._directory)
        self._name, self.size = name, size
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)
        for segment in list_segments(self._directory):
            if segment.name != name:
                self._closed.append((segment.name, size_of(self._directory, segment.name)))
        return size + sum(waiting for _, waiting in self._closed)

    def write(self, frames: List[bytes]) -> int:
        """Write frames; returns how many. When the disk is full, only whole ones, and not all."""
        data = memoryview(b"".join(frames))
        written = 0
        self._waits_for_disk = True
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            count = self._keep_whole(frames, written)
            if error.errno not in DISK_FULL:
                raise SpoolFailed(f"the spool cannot be written: {error.strerror}") from error
            return count
        self.size += written
        return len(frames)

    def roll(self, first: int, summary: bytes) -> bool:
        """Begin the next segment once all before it, and its summary, are durable.

        False when the disk is full: a larger segment is better than none.
        """
        self.sync()
        try:
            replace_in(self._directory, SUMMARY, summary)
            self.begin(first)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise SpoolFailed(f"no new segment: {error.strerror}") from error
            return False
        return True

    def sync(self) -> None:
        """Wait until the disk has what was written."""
        try:
            self._background.end()
            if self._fd >= 0 and self._waits_for_disk:
                os.fdatasync(self._fd)
            self._waits_for_disk = False
        except OSError as error:
            raise SpoolFailed(f"the spool cannot be made durable: {error.strerror}") from error

    def begin_sync(self) -> bool:
        """Have the disk take what was written, without waiting; False while it is still at that."""
        if self.syncing():
            return False
        self._background.begin(self._fd)
        return True

    def syncing(self) -> bool:
        """Whether the disk is still working; raises SpoolFailed when it has failed."""
        if self._background.running:
            return True
        try:
            self._background.end()
        except OSError as error:
            raise SpoolFailed(f"the spool cannot be made durable: {error.strerror}") from error
        return False

    def forget_freed(self) -> int:
        """Look which segments were freed; returns their bytes."""
        if not self._closed:
            return 0
        there = {segment.name for segment in list_segments(self._directory)}
        freed = sum(size for name, size in self._closed if name not in there)
        self._closed = [entry for entry in self._closed if entry[0] in there]
        return freed

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            with suppress(OSError):
                self._background.end()
            os.close(self._fd)
            self._fd = -1

    def _keep_whole(self, frames: List[bytes], written: int) -> int:
        # A reader may have seen the whole ones already: they stay what they are.
        whole = count = 0
        while count < len(frames) and whole + len(frames[count]) <= written:
            whole += len(frames[count])
            count += 1
        os.ftruncate(self._fd, self.size + whole)
        self.size += whole
        return count


class Reserve:
    """Room on the disk, given up for the end of the record when there is no other."""

    def __init__(self, directory: int, size: int) -> None:
        self.size = size
        self._directory = directory

    def take(self) -> bool:
        """Keep it, if it is not kept already; False when the disk is full."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(RESERVE, flags, 0o600, dir_fd=self._directory)
            try:
                os.posix_fallocate(fd, 0, max(1, self.size))
            finally:
                os.close(fd)
        except OSError as error:
            unlink_in(self._directory, RESERVE)
            if error.errno not in DISK_FULL:
                raise SpoolFailed(f"no room can be reserved: {error.strerror}") from error
            return False
        return True

    def release(self) -> bool:
        """Give it up; whether it was there."""
        return unlink_in(self._directory, RESERVE)
