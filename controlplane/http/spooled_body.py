"""The body of a request that is too large for memory: a little of it there, the rest in a file.

The file has no name, so nothing is left of it whatever becomes of the process.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import IO

MEMORY_BYTES = 256 * 1024
KEPT_FREE_BYTES = 1024 * 1024 * 1024
"""What stays free on the disk of the folder for everybody else."""
_LOOK_BYTES = 16 * 1024 * 1024


class SpooledBody:
    """Bytes that are appended first and read later. Never raises for a disk that fails it.

    ``failed`` is set then, and what comes is counted and thrown away.
    """

    def __init__(self, folder: str) -> None:
        self.failed = False
        self._folder = folder
        self._size = 0
        self._looked_at = 0
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - as long as this
            MEMORY_BYTES, dir=folder
        )

    def __len__(self) -> int:
        """Return how many bytes were appended."""
        return self._size

    def extend(self, data: bytes | bytearray) -> None:
        """Append ``data``."""
        self._size += len(data)
        if not self.failed:
            try:
                self._look_for_room()
                self._file.write(data)
            except OSError:
                self._fail()

    @property
    def held(self) -> int:
        """How many bytes of memory it takes."""
        return min(self._size, MEMORY_BYTES)

    def opened(self) -> SpooledBody:
        """Return itself, to be read from the beginning."""
        if not self.failed:
            try:
                self._file.seek(0)  # writes what was not written yet
            except OSError:
                self._fail()
        return self

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; none of a body that could not be kept."""
        return b"" if self.failed else self._file.read(size)

    def readline(self, size: int = -1) -> bytes:
        """Return the next bytes up to the end of a line."""
        return b"" if self.failed else self._file.readline(size)

    def close(self) -> None:
        """Forget it."""
        with suppress(OSError):  # it would write what was not written yet
            self._file.close()

    def _fail(self) -> None:
        self.failed = True
        self.close()

    def _look_for_room(self) -> None:
        if self._size - self._looked_at >= _LOOK_BYTES:
            self._looked_at = self._size
            found = os.statvfs(self._folder)
            if found.f_bavail * found.f_frsize < KEPT_FREE_BYTES:
                raise OSError("the disk has too little space")
