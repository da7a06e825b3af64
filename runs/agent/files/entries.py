"""Files and folders as they are told of: what lies at a path, conditions on its content, hashes."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .files_wire import MAX_DATA, Refusal, Wire

_LOOK_BYTES = 64 * 1024 * 1024
"""After how much that was hashed it is looked whether the caller is still there."""

_TYPES = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISLNK, "symlink"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISBLK, "block-device"),
    (stat.S_ISCHR, "character-device"),
)
Version = Tuple[int, ...]


def bytes_of(encoded: object) -> bytes:
    """The bytes of a path, which travel as base64; raises Refusal."""
    try:
        found = base64.b64decode(str(encoded).encode("ascii"), validate=True)
    except ValueError:
        found = b""
    if not found or b"\0" in found:
        raise Refusal("bad-path", "The path is empty or contains a NUL.")
    return found


def type_of(mode: int) -> str:
    """What kind of thing a mode is that of."""
    return next((name for is_type, name in _TYPES if is_type(mode)), "other")


def entry_of(name: bytes, path: bytes) -> Dict[str, Any]:
    """What is told of one thing; of a link the link itself. Raises OSError."""
    status = os.lstat(path)
    told = {
        "name": base64.b64encode(name).decode("ascii"),
        "type": type_of(status.st_mode),
        "size": status.st_size,
        "mode": "%04o" % stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "modifiedNs": status.st_mtime_ns,
    }
    if stat.S_ISLNK(status.st_mode):
        told["target"] = base64.b64encode(os.readlink(path)).decode("ascii")
    return told


def require_regular(status: os.stat_result) -> None:
    """Raise Refusal for whatever has no content of its own."""
    if stat.S_ISDIR(status.st_mode):
        raise Refusal("not-a-file", "This is a folder.")
    if not stat.S_ISREG(status.st_mode):
        kind = type_of(status.st_mode)
        raise Refusal("not-a-file", f"This is not a file but a {kind}, which cannot be opened.")


def open_regular(path: bytes) -> int:
    """Open a file to be read, and nothing that could wait or act; raises OSError or Refusal."""
    # Looked at before: to open a device may have an effect already.
    require_regular(os.stat(path))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags)
    try:
        require_regular(os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def version_of(status: os.stat_result) -> Version:
    """What changes whenever the content does."""
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def digest(fd: int, size: int, wire: Wire) -> str:
    """The SHA-256 of the first `size` bytes; of what is left of them when there are fewer.

    Raises CallerGone when nobody waits for it any more.
    """
    summed = hashlib.sha256()
    buffer = bytearray(MAX_DATA)
    view = memoryview(buffer)
    at = 0
    while at < size:
        count = os.preadv(fd, [view[: min(len(buffer), size - at)]], at)
        if not count:
            break
        summed.update(view[:count])
        at += count
        if at % _LOOK_BYTES < count:
            wire.require_caller()
    return summed.hexdigest()


class Present(NamedTuple):
    """What lies where something is to be stored or removed. `sha256` None: not asked for."""

    version: Optional[Version]
    mode: int
    sha256: Optional[str]


ABSENT = Present(None, 0, None)


class Conditions(NamedTuple):
    """`If-Match` and `If-None-Match`: hashes, or `*` for any content at all; None: not given."""

    match: Optional[List[str]]
    none_match: Optional[List[str]]

    @classmethod
    def of(cls, spec: Dict[str, Any]) -> Conditions:
        """The conditions of a request."""
        return cls(spec.get("ifMatch"), spec.get("ifNoneMatch"))

    @property
    def creates(self) -> bool:
        """Whether nothing may be there yet."""
        return self.none_match is not None and "*" in self.none_match

    @property
    def needs_hash(self) -> bool:
        """Whether they name content."""
        named = (self.match or []) + (self.none_match or [])
        return any(each != "*" for each in named)

    def check(self, present: Present) -> None:
        """Raise Refusal (`precondition-failed`) unless they hold."""
        there = present.version is not None
        if self.match is not None and not (
            there and ("*" in self.match or present.sha256 in self.match)
        ):
            raise _failed()
        if (
            self.none_match is not None
            and there
            and ("*" in self.none_match or present.sha256 in self.none_match)
        ):
            raise _failed()


def _failed() -> Refusal:
    return Refusal("precondition-failed", "The file does not meet the conditions.")
